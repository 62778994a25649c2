"""The bridge to NVIDIA FLARE: its component, who is let in, and the processes it runs in."""

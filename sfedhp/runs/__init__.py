"""What a run leaves behind: records, checkpoints, models."""

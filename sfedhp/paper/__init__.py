"""The paper's tables and figures: what to run, the records of what ran, and the two side by side."""

"""Runs in experiment trackers: TensorBoard, MLflow, Weights & Biases. They follow the folders of runs."""

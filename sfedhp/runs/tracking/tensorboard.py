"""TensorBoard: event files in the folder `tensorboard` of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sfedhp.runs.model_card import ModelCard
from sfedhp.runs.tensor_files import read_metadata
from sfedhp.runs.tracking.tracker import Subject


class TensorBoard:
    """Scalars by round; the config and the list of models as texts."""

    id = ""

    def __init__(self, subject: Subject, known: str | None):
        from torch.utils.tensorboard import SummaryWriter

        self._subject = subject
        self._writer = SummaryWriter(str(subject.folder / "tensorboard"))
        if known is None:
            self._text("config", "\n".join(f"    {line}" for line in subject.toml.splitlines()))

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """Add a row of the history, and write it."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, *, finished: bool) -> None:
        """Add the list of models, and close."""
        if lines := list(self._models()):
            self._text("models", "\n".join(["| model | metrics |", "| --- | --- |", *lines]))
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        self._writer.add_text(tag, text)

    def _models(self) -> Iterator[str]:
        for path in self._subject.models:
            metrics = ModelCard.from_metadata(str(path), read_metadata(path)).metrics
            figures = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            yield f"| {path} | {figures} |"

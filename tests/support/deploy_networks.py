"""A network with running statistics, and one with dropout."""

from torch import nn


def normalized(shape, classes):
    size = 1
    for length in shape:
        size *= length
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)
    )


class Dropping(nn.Module):
    """Dropout of every kind that a small image needs, an LSTM over the image's lines, and attention."""

    def __init__(self, shape, classes):
        super().__init__()
        self.lstm = nn.LSTM(shape[-1], 6, num_layers=2, dropout=0.2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(6, classes)

    def forward(self, images):
        return self.head(self.dropout(self.layer(self.lstm(images.flatten(1, -2))[0]).mean(1)))

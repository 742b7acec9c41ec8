"""What a site's administrator would install there: the network that its own file names."""


def network() -> object:
    from torch import nn

    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))

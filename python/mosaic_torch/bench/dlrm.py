"""DLRM in its standard form: embedding bags, bottom and top perceptron, pairwise interaction."""

import itertools

import torch
from torch import nn


def _mlp(widths):
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """``tables`` embedding bags of ``rows`` x ``width``, summed over each bag."""

    def __init__(self, tables, rows, width, dense, bottom, top):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _mlp([dense, *bottom, width])
        features = tables + 1
        pairs = features * (features - 1) // 2
        self.top = _mlp([width + pairs, *top, 1])
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)

    def forward(self, dense, indices, offsets):
        """``indices`` has one row a table; ``offsets`` is where each bag begins."""
        low = self.bottom(dense)
        vectors = [low, *(bag(row, offsets) for bag, row in zip(self.bags, indices, strict=True))]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([low, products[:, self.pairs[0], self.pairs[1]]], dim=1))

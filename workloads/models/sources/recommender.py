"""Which recommenders are in the catalog? NeuMF on MovieLens 1M (Pollux, Sia), an autoencoder on MovieLens 20M (Gavel), DLRM on Criteo.

NeuMF (He et al., WWW 2017): factorization and perceptron side by side, 32 factors and three layers, dense embedding gradients.
Recoder (amoussawi/recoder): one hidden layer of 200 between the ratings of all items; Gavel's batches keep only items that occur in
them, here all 20,108 stay. DLRM (Naumov et al., arXiv 1906.00091): 26 embedding bags of the Criteo Kaggle set, gradients
sparse. Each returns its loss.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def _perceptron(*sizes: int) -> nn.Sequential:
    layers = [part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*layers)


class NeuMf(nn.Module):  # type: ignore[misc, unused-ignore]
    """Scores of user and item by an elementwise product and by a perceptron, joined (guoyang9/NCF, model NeuMF-end)."""

    def __init__(self, users: int = 6040, items: int = 3706, factors: int = 32, layers: int = 3) -> None:
        super().__init__()
        wide = factors * 2 ** (layers - 1)
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_features, self.item_features = nn.Embedding(users, wide), nn.Embedding(items, wide)
        self.perceptron = _perceptron(*(factors * 2 ** (layers - index) for index in range(layers + 1)))
        self.predict = nn.Linear(2 * factors, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the loss of whether each *user* chose each *item* (all: batch)."""
        product = self.user_factors(user) * self.item_factors(item)
        features = self.perceptron(torch.cat((self.user_features(user), self.item_features(item)), -1))
        scores = self.predict(torch.cat((product, features), -1)).view(-1)
        loss: torch.Tensor = functional.binary_cross_entropy_with_logits(scores, label)
        return loss


class Recoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """An autoencoder of one user's ratings of all items (Liang et al., WWW 2018, filter MovieLens 20M to 20,108 items)."""

    def __init__(self, items: int = 20108, hidden: int = 200) -> None:
        super().__init__()
        self.noise, self.encode, self.activation, self.decode = (
            nn.Dropout(0.5),
            nn.Linear(items, hidden),
            nn.Tanh(),
            nn.Linear(hidden, items),
        )

    def forward(self, ratings: torch.Tensor) -> torch.Tensor:
        """Return the loss of restoring *ratings* (batch, items)."""
        restored = self.decode(self.activation(self.encode(self.noise(ratings))))
        loss: torch.Tensor = functional.binary_cross_entropy_with_logits(restored, ratings)
        return loss


_CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Categories of each feature of the Criteo Kaggle display advertising set, as facebookresearch/dlrm counts them."""


class Dlrm(nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding bags, a bottom perceptron, their products, a top perceptron (facebookresearch/dlrm, bench/dlrm_s_criteo_kaggle.sh)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for rows in _CRITEO)
        self.bottom = _perceptron(13, 512, 256, 64, width)
        pairs = (len(_CRITEO) + 1) * len(_CRITEO) // 2
        self.top, self.predict = _perceptron(width + pairs, 512, 256), nn.Linear(256, 1)

    def forward(self, dense: torch.Tensor, categories: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the loss of clicks given 13 *dense* features and 26 *categories* (batch first)."""
        bottom = self.bottom(dense)
        vectors = [bottom, *(table(categories[:, index : index + 1]) for index, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(len(vectors), len(vectors), -1, device=dense.device)
        scores = self.predict(self.top(torch.cat((bottom, products[:, row, column]), 1))).view(-1)
        loss: torch.Tensor = functional.binary_cross_entropy_with_logits(scores, label)
        return loss

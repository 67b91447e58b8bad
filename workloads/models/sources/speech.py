"""What is DeepSpeech2 in the catalog? The one that Pollux and Sia ran: two convolutions and five bidirectional GRUs of width 800.

After Amodei et al. (ICML 2016) as SeanNaren/deepspeech.pytorch codes it: spectrograms of 161 frequencies every 10 ms, batch norm
between the GRUs, the two directions added, 29 letters. Limits: clips of one length, no packing; the loss counts as cross-entropy
over the letters, CTC's own recursion is left out.
"""

from __future__ import annotations

import torch
from torch import nn


class DeepSpeech2(nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolutions over time and frequency, GRUs over time, letters."""

    def __init__(self, width: int = 800, depth: int = 5, letters: int = 29) -> None:
        super().__init__()
        self.convolution = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.recurrent = nn.ModuleList(nn.GRU(size, width, bidirectional=True) for size in (32 * 41, *(depth - 1) * (width,)))
        self.norm = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.letters = nn.Linear(width, letters, bias=False)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """Return the letters' scores (time, batch, letters) of *spectrogram* (batch, 1, 161, time)."""
        hidden = self.convolution(spectrogram).flatten(1, 2).permute(2, 0, 1).contiguous()
        for recurrent, norm in zip(self.recurrent, self.norm, strict=True):
            states, _ = recurrent(hidden)
            hidden = states.unflatten(2, (2, -1)).sum(2)
            hidden = norm(hidden.flatten(0, 1)).view_as(hidden)  # before the next GRU, or before the letters
        result: torch.Tensor = self.letters(hidden)
        return result

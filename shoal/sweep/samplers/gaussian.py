"""A Gaussian process in torch: a Matern-3/2 kernel with a length for each input, plus a linear one, plus noise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

STEPS, RATE = 50, 0.1  # of Adam, on the hyperparameters
NOISE = (-4.63, 0.5)  # mean and deviation of log(noise variance), for targets of variance 1
JITTER = 1e-6


class Model:
    """Fitted to inputs (n, d) in 0 .. 1 and targets (n,); `mean` predicts. Needs no random numbers."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.x = torch.as_tensor(np.asarray(inputs), dtype=torch.float64)
        y = np.asarray(targets, dtype=np.float64)
        self.middle, self.scale = float(y.mean()), float(y.std()) or 1.0
        self.y = torch.as_tensor((y - self.middle) / self.scale, dtype=torch.float64)
        count = self.x.shape[1]
        # logarithms: a length per input, variance, linear variance, noise variance
        start = [math.log(0.5)] * count + [0.0, math.log(0.1), NOISE[0]]
        self.theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        self.prior = torch.tensor([math.log(0.5 * math.sqrt(count))] * count, dtype=torch.float64)
        with one_thread(), torch.enable_grad():
            self._fit()
        with one_thread(), torch.no_grad():
            self.weights = torch.cholesky_solve(self.y.unsqueeze(1), self._factor())

    def mean(self, inputs: Any) -> Any:
        """The predicted targets of inputs (m, d)."""
        x = torch.as_tensor(np.asarray(inputs), dtype=torch.float64)
        with one_thread(), torch.no_grad():
            predicted = (self._kernel(x, self.x) @ self.weights).squeeze(1)
        return predicted.numpy() * self.scale + self.middle

    def _kernel(self, a: Any, b: Any) -> Any:
        lengths, (variance, linear) = self.theta[:-3].exp(), self.theta[-3:-1].exp()
        p, q = a / lengths, b / lengths
        square = p.square().sum(1).unsqueeze(1) + q.square().sum(1) - 2.0 * p @ q.T
        distance = math.sqrt(3.0) * (square.clamp(min=0.0) + 1e-12).sqrt()
        return variance * (1.0 + distance) * torch.exp(-distance) + linear * (a - 0.5) @ (b - 0.5).T

    def _factor(self) -> Any:
        noise = self.theta[-1].exp() + JITTER
        return torch.linalg.cholesky(self._kernel(self.x, self.x) + noise * torch.eye(len(self.x), dtype=torch.float64))

    def _fit(self) -> None:
        """Adam on the negative log posterior. (torch.optim would import its compiler, which takes seconds.)"""
        mean, square = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        for step in range(1, STEPS + 1):
            (gradient,) = torch.autograd.grad(self._loss(), self.theta)
            with torch.no_grad():
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient.square(), 0.001)
                move = mean / (1.0 - 0.9**step) / ((square / (1.0 - 0.999**step)).sqrt() + 1e-8)
                self.theta -= RATE * move

    def _loss(self) -> Any:
        factor = self._factor()
        half = torch.linalg.solve_triangular(factor, self.y.unsqueeze(1), upper=False)
        loss = 0.5 * half.square().sum() + factor.diagonal().log().sum()
        loss = loss + 0.5 * (self.theta[:-3] - self.prior).square().sum()
        loss = loss + 0.5 * ((self.theta[-1] - NOISE[0]) / NOISE[1]).square()
        return loss + 0.5 * self.theta[-3].square() + 0.125 * (self.theta[-2] - math.log(0.1)).square()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch computes on one thread: these matrices are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

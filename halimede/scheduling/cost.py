"""What batches cost: a fixed part and a part for each row. Pure; loop thread."""

COST_WINDOW = 64
"""Batches that the costs are averaged over."""


class Cost:
    """What a batch takes by its number of rows: a fixed part and a part for each row, by moving averages. While all
    batches have one size the parts cannot be told apart. Then all counts as fixed, so larger batches are tried."""

    def __init__(self) -> None:
        self._runs = 0
        self._rows = self._ns = self._variance = self._covariance = 0.0

    def ran(self, rows: int, ns: int) -> None:
        self._runs += 1
        weight = 1 / min(self._runs, COST_WINDOW)
        more_rows, more_ns = rows - self._rows, ns - self._ns
        self._rows += weight * more_rows
        self._ns += weight * more_ns
        self._variance += weight * ((1 - weight) * more_rows**2 - self._variance)
        self._covariance += weight * ((1 - weight) * more_rows * more_ns - self._covariance)

    @property
    def of_a_row(self) -> float:
        if self._variance < 0.01:  # nearly all batches have one size: a slope of these would be noise
            return 0.0
        # Noise must not make a row free of cost, nor dearer than all of the batch.
        return min(max(self._covariance / self._variance, 0.0), self._ns / max(self._rows, 1.0))

    @property
    def fixed(self) -> float:
        """What one batch less saves."""
        return max(self._ns - self.of_a_row * self._rows, 0.0)

    def expected(self, rows: int) -> float:
        return self.fixed + self.of_a_row * rows

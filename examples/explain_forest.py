"""Asks the model `tumours` about one tumour that it has not seen, and says which measurements decided.

    python examples/explain_forest.py [--url localhost:8000] [--svg FILE]

With `--svg` it draws the SHAP values of that prediction (matplotlib).
"""

import argparse

import numpy as np
import tritonclient.http as httpclient
from sklearn.datasets import load_breast_cancer
from train_forests import held_out

SHOWN = 8
"""Measurements that are shown; the others are one bar."""


def ask(url: str, row: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> tuple[float, list[float]]:
    """The probability of a benign tumour, and the SHAP values with the bias last."""
    given = httpclient.InferInput("input__0", [1, row.size], "FP32")
    given.set_data_from_numpy(row.reshape(1, -1))
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("tumours", [given])
    return float(result.as_numpy("output__0")[0]), result.as_numpy("treeshap_output")[0].tolist()


def largest(names: list[str], values: list[float]) -> list[tuple[str, float]]:
    """The features with the largest values, and the sum of all others."""
    order = sorted(range(len(names)), key=lambda i: -abs(values[i]))
    rest = sum(values[i] for i in order[SHOWN:])
    return [*((names[i], values[i]) for i in order[:SHOWN]), (f"{len(names) - SHOWN} others", rest)]


def draw(path: str, bars: list[tuple[str, float]], title: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "halimede"  # the same picture has the same bytes
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    names, values = zip(*reversed(bars), strict=True)
    axes.barh(names, values, color=["#2b7bba" if value > 0 else "#c0392b" for value in values])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("SHAP value (log odds): to the right speaks for benign")
    axes.set_title(title)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Explains one prediction of the model tumours.")
    parser.add_argument("--url", default="localhost:8000", help="HTTP port of the server (default localhost:8000)")
    parser.add_argument("--number", type=int, default=3, help="which of the tumours that were held out (default 3)")
    parser.add_argument("--svg", default="", help="file to draw the values in")
    order = parser.parse_args()
    data = load_breast_cancer()
    _, _, rows, targets = held_out(data)
    row = rows[order.number].astype(np.float32)
    probability, values = ask(order.url, row)
    *features, bias = values
    title = f"benign with {probability:.1%}, in truth {data.target_names[targets[order.number]]}"
    print(title)
    bars = largest(data.feature_names.tolist(), features)
    for name, value in bars:
        print(f"{value:+6.2f}  {name}")
    print(f"{bias:+6.2f}  mean of the training data")
    if order.svg:
        draw(order.svg, bars, title)


if __name__ == "__main__":
    main()

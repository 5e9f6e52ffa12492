"""The real Model Analyzer against Halimede in remote mode, with its own perf_analyzer and with `halimede perf`.

    python -m bench.model_analyzer --program PATH [--json FILE]

PATH is the program `model-analyzer` (`pip install triton-model-analyzer`). Each of its quick searches and then
`halimede analyze` look for the best configuration of the same model in the same space. The model waits 20 ms for a
batch and 3 ms for each row, so its best configuration is known: the most instances, and batches as large as the latency
allows.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.analyze import CONFIG, MODEL
from tools.versus import ORACLE, Server, settle

NAME = "mixed"
BUDGET_MS = 200
LIMIT = 1800.0
SERVE = (
    f"{sys.executable} -m halimede serve --model-repository={{repo}} --model-repository={{variants}} "
    "--model-control-mode=explicit "
    "--http-address=127.0.0.1 --grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
)
BOUNDS = {
    "run_config_search_max_instance_count": 3,
    "run_config_search_max_model_batch_size": 16,
    "run_config_search_max_concurrency": 64,
}
LOADS = {"perf_analyzer": f"{ORACLE} perf", "halimede perf": f"{sys.executable} -m halimede perf"}
COLUMNS = ("model_name", "concurrency", "instance_group", "max_batch_size", "perf_throughput", "perf_latency_p99")


def write_model(repository: Path) -> None:
    (repository / NAME / "1").mkdir(parents=True)
    (repository / NAME / "1" / "model.py").write_text(MODEL.format(base=0.02, each=0.003))
    (repository / NAME / "config.pbtxt").write_text(CONFIG.format())


def search(program: str, load: str, folder: Path) -> dict[str, Any]:
    """One quick search of Model Analyzer. The server also has the folder of its configurations as a repository."""
    folder.mkdir()
    models, variants = folder / "models", folder / "variants"
    write_model(models)
    variants.mkdir()
    tool = folder / "perf_analyzer"
    tool.write_text(f'#!/bin/sh\nexec {load} "$@"\n')
    tool.chmod(0o755)
    server = Server("server", SERVE.replace("{variants}", str(variants)), models, set())
    try:
        settle([server])
        _wait_until_live(server)
        settings: dict[str, Any] = {
            **BOUNDS,
            "model_repository": str(models),
            "output_model_repository_path": str(variants),
            "override_output_model_repository": True,
            "profile_models": {NAME: {"cpu_only": True}},
            "triton_launch_mode": "remote",
            "triton_http_endpoint": f"127.0.0.1:{server.http}",
            "triton_grpc_endpoint": f"127.0.0.1:{server.grpc}",
            "triton_metrics_url": f"http://127.0.0.1:{server.metrics}/metrics",
            "run_config_search_mode": "quick",
            "concurrency_sweep_disable": True,
            "perf_analyzer_path": str(tool),
            "latency_budget": BUDGET_MS,
            "dcgm_disable": True,
            "export_path": str(folder),
            "checkpoint_directory": str(folder / "checkpoints"),
            "inference_output_fields": list(COLUMNS),
        }
        (folder / "settings.yaml").write_text(json.dumps(settings, indent=1))  # JSON is YAML
        return _run([program, "profile", "-f", str(folder / "settings.yaml")], folder)
    finally:
        server.stop()


def own_search(folder: Path) -> dict[str, Any]:
    """The same with `halimede analyze`, which starts its server itself."""
    folder.mkdir()
    write_model(folder / "models")
    words = [sys.executable, "-m", "halimede", "analyze", "profile", NAME, "-m", str(folder / "models")]
    words += ["-e", str(folder), "-s", str(folder / "checkpoints"), "--latency-budget", str(BUDGET_MS)]
    words += ["--run-config-search-queue-delays", "0", "--inference-output-fields", ",".join(COLUMNS)]
    for name, value in BOUNDS.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return _run(words, folder)


def _wait_until_live(server: Server) -> None:
    until = time.monotonic() + 60
    while not server.ok("/v2/health/live"):
        if time.monotonic() > until:
            raise RuntimeError("the server is not live")
        time.sleep(0.05)


def _run(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Runs a search to its end. Its best configuration is the first row of its table."""
    began = time.monotonic()
    with (folder / "log").open("w") as log:
        status = subprocess.run(command, stdout=log, stderr=log, timeout=LIMIT, check=False, cwd=folder).returncode
    found: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - began, 1)}
    table = folder / "results" / "metrics-model-inference.csv"
    if status or not table.exists():
        return {**found, "log": (folder / "log").read_text()[-2000:]}
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    return {**found, "measurements": len(rows), "best": rows[0]}


def show(name: str, found: Mapping[str, Any]) -> None:
    best = found.get("best", {})
    print(f"{name}: exit {found['status']}, {found['seconds']} s, {found.get('measurements', 0)} measurements; best:")
    print("  " + (", ".join(f"{key} {value}" for key, value in best.items()) or found.get("log", "")), flush=True)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the program model-analyzer")
    parser.add_argument("--json", type=Path, help="the file for the results")
    parser.add_argument("--keep", type=Path, help="an empty folder for all logs and tables")
    options = parser.parse_args(words)
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    results = {}
    with tempfile.TemporaryDirectory(prefix="searches-") as name:
        root = options.keep or Path(name)
        root.mkdir(exist_ok=True)
        for load, command in LOADS.items():
            results[f"Model Analyzer with {load}"] = search(options.program, command, root / load.split()[0])
            show(f"Model Analyzer with {load}", results[f"Model Analyzer with {load}"])
        results["halimede analyze"] = own_search(root / "analyze")
        show("halimede analyze", results["halimede analyze"])
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(found["status"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

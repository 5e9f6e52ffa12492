"""Looks for inputs that the parsers, or the server, must not answer as they do, guided by the coverage of our code.

    python -m tests.fuzz [parsers] [server] [--seconds 600] [--targets NAME,NAME] [--keep] [--json FILE]

`--seconds` is the time for each of the two groups, which its targets share. The mutations and the choice of inputs are
those of atheris (libFuzzer). Findings are printed, with their inputs as Python writes bytes, and the exit status is 1.
`--keep` adds the new inputs that reach more code to the corpus, and findings.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz import corpus

PARSERS = (
    *("http1", "http2", "hpack", "huffman_code", "grpc_frames", "grpc_infer", "grpc_administration", "http_infer"),
    *("http_administration", "strings", "configuration_json", "configuration_text"),
)
GROUPS = {"parsers": PARSERS, "server": ("server_http", "server_grpc")}
MAX_BYTES = 1 << 11
"""Length of an input, so that many are tried."""
INPUT_SECONDS = 20
"""An input that takes longer is a finding."""
ENDING_SECONDS = 120
MAX_KEPT = 40
"""Inputs that one run adds to the corpus of a target."""


@dataclass(slots=True)
class Result:
    """What one target gave. `runs` are inputs that were tried, `found` the findings."""

    target: str
    seconds: float = 0.0
    runs: int = 0
    kept: int = 0
    found: list[str] = field(default_factory=list)


def look(target: str, seconds: float, keep: bool) -> Result:
    """Runs one target in a process of its own."""
    known, result = corpus.read(target), Result(target)
    with tempfile.TemporaryDirectory(prefix="halimede-fuzz-") as folder:
        seeds, work = Path(folder, "seeds"), Path(folder, "found")
        work.mkdir()
        seeds.mkdir()
        for number, each in enumerate(known):
            (seeds / str(number)).write_bytes(each)
        began = time.monotonic()
        command = [
            *(sys.executable, "-m", "tests.fuzz.worker", target, str(seeds)),
            *(f"-max_total_time={max(1, int(seconds))}", f"-timeout={INPUT_SECONDS}", f"-max_len={MAX_BYTES}"),
            *(f"-artifact_prefix={work}/", "-print_final_stats=1", "-rss_limit_mb=4096"),
        ]
        done = subprocess.run(
            command,
            env={**os.environ, "HALIMEDE_COMPILED": "off"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + ENDING_SECONDS,
            check=False,
        )
        result.seconds = round(time.monotonic() - began, 1)
        for line in done.stderr.splitlines():
            if line.startswith("stat::number_of_executed_units:"):
                result.runs = int(line.rsplit(" ", 1)[1])
        findings = [each.read_bytes() for each in sorted(work.iterdir())]
        if findings or done.returncode:
            result.found = [repr(each) for each in findings] or ["the fuzzer itself ended"]
            sys.stderr.write("\n".join(done.stdout.splitlines()[-40:] + done.stderr.splitlines()[-25:]) + "\n")
        if keep:
            reached = [each.read_bytes() for each in seeds.iterdir()]
            # libFuzzer adds only inputs that reach more code.
            more = sorted({*reached} - {*known}, key=len)[:MAX_KEPT]
            corpus.write(target, [*known, *more, *findings])
            result.kept = len(corpus.read(target))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="what is looked at; both if none is given")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--targets", help="only these, with a comma between two")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = []
    for group in given.groups or GROUPS:
        targets = [name for name in GROUPS[group] if not given.targets or name in given.targets.split(",")]
        for target in targets:
            result = look(target, given.seconds / len(targets), given.keep)
            print(f"{target}: {result.runs} inputs in {result.seconds} s, {len(result.found)} findings", flush=True)
            for each in result.found:
                print(f"  {each}", flush=True)
            results.append(result)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return 1 if any(each.found for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())

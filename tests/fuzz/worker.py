"""The process in which libFuzzer calls one target: `python -m tests.fuzz.worker TARGET [options of libFuzzer]`."""

import sys

import atheris


def main() -> None:
    name, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=["halimede"]):
        from tests.fuzz import server, targets
    found = targets.TARGETS.get(name) or {"server_http": server.server_http, "server_grpc": server.server_grpc}[name]
    atheris.Setup([sys.argv[0], *arguments], found)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""The launcher: `python -I -S main.py PLAN PROGRAM ARGUMENT ...` confines itself as PLAN says and becomes PROGRAM.
`python -I -S main.py probe WAY FOLDER` tells what can be had here.

If a step fails the program does not run: the exit status is 126 and the reason is on standard error.
"""

import glob
import json
import os
import sys
from types import ModuleType

if "halimede" not in sys.modules:
    # The package itself imports three times as much as this program needs, which would delay each start.
    package = ModuleType("halimede")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["halimede"] = package

from halimede.workers.sandbox import calls, identity, landlock, seccomp, system
from halimede.workers.sandbox.plan import VARIABLE, Plan, Way

NOT_CONFINED = 126
DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/*", "/dev/accel/*"),
)
"""Devices that a model may use: those without state, and those of GPUs."""


def confine(plan: Plan) -> None:
    """Raises OSError. The order matters: each step takes away what the steps before it needed."""
    if plan.cgroup:
        identity.join(plan.cgroup)
    identity.be_ended_first()
    can_read_all = identity.can_read_all()
    if plan.mounts:
        identity.enter_namespaces(plan.way)
        identity.make_mounts(plan)
    version = landlock.version()
    rules = landlock.Rules(version)
    rules.allow(plan.read, landlock.READ)
    rules.allow((plan.temporary, *plan.write), rules.write)
    if plan.mounts:
        rules.allow([identity.SHARED_MEMORY], rules.write)
    rules.allow([path for pattern in DEVICES for path in glob.glob(pattern)], landlock.DEVICE)
    filtered = seccomp.program(calls.refusals(plan, os.getpid(), version >= landlock.SCOPED_SINCE), system.machine())
    if plan.way is Way.USER:
        identity.become(plan.user, can_read_all)
    else:
        identity.give_up_capabilities()
    identity.set_limits(plan)
    call = system.call
    call("prctl", system.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rules.enforce()
    seccomp.install(filtered)


def probe(way: Way, folder: str) -> int:
    """Prints what can be had as JSON: the version of Landlock, and why there are no mounts (empty: there are)."""
    refusal = ""
    try:
        identity.enter_namespaces(way)
        identity.make_mounts(Plan(way, folder, 1 << 20, 0, 0))
    except OSError as error:
        refusal = str(error)
    known = system.machine() in seccomp.ARCHITECTURES
    print(json.dumps({"landlock": landlock.version() if known else 0, "no_mounts": refusal}))
    return 0


def main(arguments: list[str]) -> int:
    if arguments[0] == "probe":
        return probe(Way(arguments[1]), arguments[2])
    plan = Plan.of_json(arguments[0])
    program = arguments[1:]
    variables = {name.removeprefix(VARIABLE): text for name, text in os.environ.items() if name.startswith(VARIABLE)}
    try:
        confine(plan)
        os.execvpe(program[0], program, variables)
    except OSError as error:
        print(f"the sandbox cannot be made, {program[0]} is not run: {error}", file=sys.stderr)
    return NOT_CONFINED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The system calls that a confined process may not make, with the reason of each group. Pure.

Everything else is allowed: a runtime of a GPU, or one that is written tomorrow, makes calls that no list has. What
touches files is the task of Landlock and of mounts.
"""

from collections.abc import Iterator
from typing import NamedTuple

from halimede.workers.sandbox.plan import Plan, Way

_TABLE = """
    ptrace 101 117  process_vm_readv 310 270  process_vm_writev 311 271  kcmp 312 272  process_madvise 440 440
    pidfd_getfd 438 438  kill 62 129  tkill 200 130  tgkill 234 131  rt_sigqueueinfo 129 138
    rt_tgsigqueueinfo 297 240  pidfd_send_signal 424 424  fcntl 72 25  setuid 105 146  setgid 106 144
    setreuid 113 145  setregid 114 143  setresuid 117 147  setresgid 119 149  setgroups 116 159  setfsuid 122 151
    setfsgid 123 152  setsid 112 157  setpgid 109 154  shmget 29 194  semget 64 190  msgget 68 186  mq_open 240 180
    add_key 248 217  request_key 249 218  keyctl 250 219  bpf 321 280  perf_event_open 298 241  userfaultfd 323 282
    kexec_load 246 104  kexec_file_load 320 294  init_module 175 105  finit_module 313 273  delete_module 176 106
    reboot 169 142  swapon 167 224  swapoff 168 225  mount 165 40  umount2 166 39  pivot_root 155 41  chroot 161 51
    open_tree 428 428  move_mount 429 429  fsopen 430 430  fsconfig 431 431  fsmount 432 432  fspick 433 433
    mount_setattr 442 442  open_tree_attr 467 467  setns 308 268  unshare 272 97  open_by_handle_at 304 265
    quotactl 179 60  quotactl_fd 443 443  acct 163 89  settimeofday 164 170  clock_settime 227 112  adjtimex 159 171
    clock_adjtime 305 266  sethostname 170 161  setdomainname 171 162  iopl 172 -  ioperm 173 -  vhangup 153 58
    syslog 103 116  io_uring_setup 425 425  io_uring_enter 426 426  io_uring_register 427 427  fanotify_init 300 262
    clone 56 220  clone3 435 435  socket 41 198  socketpair 53 199  prlimit64 302 261
    ioctl 16 29  setpriority 141 140  ioprio_set 251 30  sched_setscheduler 144 119  sched_setparam 142 118
    sched_setattr 314 274  sched_setaffinity 203 122  chmod 90 -  fchmod 91 52  fchmodat 268 53  fchmodat2 452 452
    chown 92 -  fchown 93 55  lchown 94 -  fchownat 260 54  setxattr 188 5  lsetxattr 189 6  fsetxattr 190 7
    setxattrat 463 463  removexattr 197 14  lremovexattr 198 15  fremovexattr 199 16  removexattrat 466 466
    file_setattr 469 469  utime 132 -  utimes 235 -  futimesat 261 -  utimensat 280 88
"""
"""Each call with its numbers on x86_64 and on aarch64; "-": that machine does not have it."""


def _numbers(table: str) -> dict[str, tuple[int | None, int | None]]:
    words = iter(table.split())
    return {name: (_number(first), _number(second)) for name, first, second in zip(words, words, words, strict=True)}


def _number(word: str) -> int | None:
    return None if word == "-" else int(word)


NUMBERS = _numbers(_TABLE)

NEVER = (
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # another user
    *("setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid"),
    # a way out of the process group, with which the server ends everything that a model has started
    *("setsid", "setpgid"),
    # memory that no limit counts and that stays when the process has ended
    *("shmget", "semget", "msgget", "mq_open"),
    # parts of the kernel that no model needs, and whose faults gave other programs rights before
    *("add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd", "fanotify_init"),
    # it makes other calls where no filter sees them
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    # the machine
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff"),
    *("acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname"),
    *("setdomainname", "iopl", "ioperm", "vhangup", "syslog"),
    # other mounts, namespaces, and files that are reached without a path
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "setns", "unshare", "open_by_handle_at"),
)
OF_FILES = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr"),
    *("fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat", "file_setattr"),
    *("utime", "utimes", "futimesat", "utimensat"),
)
"""Changes of a file's mode, owner, times and attributes, which Landlock does not know. Any file of the same user allows
them, so they are refused to a process that stays this user and has no mounts of its own."""
OF_THE_USER = ("setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr")
"""They may change other processes of the same user."""

AF_INET, AF_INET6, AF_NETLINK = 2, 10, 16
_STREAM, _SEQPACKET, _TYPE = 1, 5, 0xF
_NEW_NAMESPACES = 0x7E020080
_TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX write into the input of the terminal: the operator's shell would read it."""
_OWNERS = (8, 15)
"""F_SETOWN and F_SETOWN_EX let the kernel send signals to another process."""
_SIGNAL_OWNERS = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP, the same by ioctl."""
_ALL = 0xFFFFFFFF


class Refusal(NamedTuple):
    """A call that is refused: always, or if the lower half of an argument, masked, is none of `only` or one of
    `but`. `missing` answers as a kernel that does not have the call."""

    name: str
    argument: int | None = None
    mask: int = _ALL
    only: tuple[int, ...] = ()
    but: tuple[int, ...] = ()
    missing: bool = False


def refusals(plan: Plan, pid: int, scoped: bool) -> Iterator[Refusal]:
    """What the process `pid` may not call. `scoped`: Landlock keeps its signals in."""
    yield from map(Refusal, NEVER)
    network = (AF_INET, AF_INET6, AF_NETLINK) if plan.network else ()
    # Unix sockets have names in the file system, and no rule for files keeps a process from connecting to them.
    yield Refusal("socket", 0, only=network) if network else Refusal("socket")
    # A connected pair reaches nobody else. Datagrams may be sent to any name.
    yield Refusal("socketpair", 1, _TYPE, only=(_STREAM, _SEQPACKET))
    yield Refusal("prlimit64", 0, only=(0, pid))
    # Its flags are in memory, which no filter can read. Libraries fall back to `clone`.
    yield Refusal("clone3", missing=True)
    yield Refusal("clone", 0, _NEW_NAMESPACES, only=(0,))
    blocked: tuple[int, ...] = _TERMINAL
    if plan.way is not Way.USER:
        yield from map(Refusal, OF_THE_USER)
        yield Refusal("sched_setaffinity", 0, only=(0, pid))
        if not scoped:
            blocked += _SIGNAL_OWNERS
            yield from _signals(pid)
    yield Refusal("ioctl", 1, but=blocked)
    if plan.way is Way.SAME:
        yield from map(Refusal, OF_FILES)


def _signals(pid: int) -> Iterator[Refusal]:
    """Only the first process may send signals, and only to itself."""
    yield Refusal("kill", 0, only=(0, pid, -pid & _ALL))
    for name in ("tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        yield Refusal(name, 0, only=(pid,))
    yield from map(Refusal, ("tkill", "pidfd_send_signal"))
    yield Refusal("fcntl", 1, but=_OWNERS)

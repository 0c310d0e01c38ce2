"""Make this process look like one on Windows or macOS to whatever is imported afterwards.

``simulate`` removes the names of `os` and `signal` and the modules that the platform lacks, hides
``/proc`` and ``/sys``, and sets ``sys.platform``. Other packages are imported before: NumPy, cffi
and their like have binaries for Linux here. So what is tested is dnnffi's own Python code; not the
packages that it uses, no file system and no dynamic loader.

As a plugin of pytest (``-p simulated_platform``), this module changes the process when it is
imported, before any conftest.py; `ENVIRONMENT_VARIABLE` names the platform. A test that itself uses
a name that is missing is skipped. `make test-platforms` runs the tests that way.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Generator, Sequence

import pytest

ENVIRONMENT_VARIABLE = "SIMULATED_PLATFORM"
PLATFORMS = ("win32", "darwin")

# Names that Python has on Linux only, or not on Windows: documentation of Python 3.14, "os" and
# "signal", the notes on availability.
_LINUX_ONLY = """
    O_PATH O_TMPFILE copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getxattr
    listxattr login_tty memfd_create pidfd_open posix_fadvise posix_fallocate removexattr
    sched_getaffinity sched_setaffinity setns setxattr splice timerfd_create unshare
"""
_NOT_ON_WINDOWS = """
    F_LOCK F_TEST F_TLOCK F_ULOCK O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE
    O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_RSYNC O_SYNC RTLD_DEEPBIND RTLD_GLOBAL
    RTLD_LAZY RTLD_LOCAL RTLD_NODELETE RTLD_NOLOAD RTLD_NOW WCONTINUED WCOREDUMP WEXITED WEXITSTATUS
    WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG
    WUNTRACED chown chroot confstr ctermid fchdir fchmod fchown fork forkpty fpathconf fstatvfs
    getegid geteuid getgid getgrouplist getgroups getloadavg getpgid getpgrp getpriority getresgid
    getresuid getsid getuid initgroups killpg lchown lockf major makedev minor mkfifo mknod nice
    openpty pathconf pipe2 posix_openpt posix_spawn posix_spawnp pread preadv pwrite pwritev readv
    register_at_fork sched_get_priority_max sched_get_priority_min sched_getparam
    sched_getscheduler sched_param sched_rr_get_interval sched_setparam sched_setscheduler
    sched_yield sendfile setegid seteuid setgid setgroups setpgid setpriority setregid setresgid
    setresuid setreuid setsid setuid statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname wait
    wait3 wait4 waitid writev
"""
_SIGNALS_NOT_ON_WINDOWS = """
    SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH
    alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait
"""
MISSING_NAMES = {
    "win32": {
        os: (_LINUX_ONLY + _NOT_ON_WINDOWS).split(),
        signal: ["sigtimedwait", "sigwaitinfo", *_SIGNALS_NOT_ON_WINDOWS.split()],
    },
    "darwin": {os: _LINUX_ONLY.split(), signal: ["sigtimedwait", "sigwaitinfo"]},
}
MISSING_MODULES = {
    "win32": ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"),
    "darwin": (),
}

# They ask for the platform when they are imported.
_IMPORTED_BEFORE = (
    *("concurrent.futures.process", "ctypes.util", "pathlib", "platform", "tempfile", "zipfile"),
    *("cffi", "numpy", "platformdirs", "threadpoolctl"),
)
_IMPORTED_BEFORE_TESTS = (
    *("asyncio", "hypothesis", "jax", "matplotlib.pyplot", "ml_dtypes", "multiprocessing.pool"),
    *("rich", "safetensors.numpy", "scipy.signal", "wgpu.backends.auto"),
)
_PACKAGE = f"{os.sep}src{os.sep}dnnffi{os.sep}"
_REASON = re.compile(r"(?:has no attribute|import of) '?(\w+)'?")
_removed: set[str] = set()


def simulate(platform: str, others: Sequence[str] = ()) -> None:
    """Change this process until it ends. dnnffi must not have been imported.

    The modules ``others`` are imported before, as far as they are installed.
    """
    if any(name.partition(".")[0] == "dnnffi" for name in sys.modules):
        raise RuntimeError("dnnffi has been imported: it has seen the real platform")
    for name in (*_IMPORTED_BEFORE, *others):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    _search_libraries_of_blas()
    _keep_for_processes()
    for module, names in MISSING_NAMES[platform].items():
        for name in names:
            vars(module).pop(name, None)
        _removed.update(names)
    for name in MISSING_MODULES[platform]:
        sys.modules[name] = None  # makes its import fail
        _removed.add(name)
    sys.addaudithook(_hide_kernel_files)
    sys.platform = platform


def _search_libraries_of_blas() -> None:
    """Let threadpoolctl search now: it asks for the platform, and reads ``/proc`` on Linux."""
    import threadpoolctl

    found = threadpoolctl.ThreadpoolController()
    threadpoolctl.ThreadpoolController = lambda: found


def _keep_for_processes() -> None:
    """Leave real modules to what starts and ends processes: those are processes of Linux."""
    for user in (subprocess, shutil):
        for module in (os, signal):
            if module.__name__ in vars(user):
                kept = types.ModuleType(module.__name__)
                vars(kept).update(vars(module))
                setattr(user, module.__name__, kept)


def _hide_kernel_files(event: str, arguments: Sequence[object]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        if path.startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that itself uses a name that was removed; if dnnffi uses one, the test fails."""
    report = yield
    if report.failed and call.excinfo is not None and _is_of_test(call.excinfo):
        report.outcome = "skipped"
        path, line, _ = item.location
        report.longrepr = (path, (line or 0) + 1, f"Skipped: {call.excinfo.value}")
    return report


def _is_of_test(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    found = _REASON.search(str(raised.value))
    if not raised.errisinstance((AttributeError, ImportError)) or found is None:
        return False
    is_in_package = any(_PACKAGE in str(entry.path) for entry in raised.traceback)
    return found[1] in _removed and not is_in_package


if ENVIRONMENT_VARIABLE in os.environ:
    simulate(os.environ[ENVIRONMENT_VARIABLE], _IMPORTED_BEFORE_TESTS)

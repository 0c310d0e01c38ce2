"""The command line: ``python -m dnnffi info``, ``demo`` and ``bench``. Each command is a module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dnnffi.cli import bench, demo, info
from dnnffi.cli.command import INTERRUPTED, CommandError
from dnnffi.errors import DnnffiError

_COMMANDS = (info, demo, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success, 1 a failure, 2 a wrong argument, 130 an interruption (Ctrl-C).
    """
    parser = argparse.ArgumentParser(
        prog="python -m dnnffi",
        description="RNNs on CuPy arrays through cuDNN; they and convolutions on NumPy.",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME, help=command.HELP, description=command.DESCRIPTION
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    options = parser.parse_args(arguments)
    if "command" not in options:
        parser.print_help()
        return 0
    try:
        return int(options.command.run(options))
    except CommandError as error:
        print(f"dnnffi {options.command.NAME}: error: {error}", file=sys.stderr)
        return error.code
    except (DnnffiError, MemoryError, OSError) as error:
        # CuPy's OutOfMemoryError is a MemoryError too; a full disk is an OSError.
        text = str(error) or "out of memory"
        print(f"dnnffi {options.command.NAME}: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED

"""The command line: ``dnnffi info``, ``demo`` and ``bench``. Each command is a module."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from dnnffi import __version__
from dnnffi.cli import bench, demo, info
from dnnffi.cli.command import INTERRUPTED, CommandError
from dnnffi.errors import DnnffiError

_COMMANDS = (info, demo, bench)


def script(name: str = "dnnffi") -> int:
    """Run the command line of this process, which was called as ``name``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A sample of text may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    return main(name=name)


def main(arguments: Sequence[str] | None = None, name: str = "dnnffi") -> int:
    """Run one command and return its exit code; help calls the program ``name``.

    0 is success, 1 a failure, 2 a wrong argument, 130 an interruption (Ctrl-C).
    """
    parser = argparse.ArgumentParser(
        prog=name,
        description="Recurrent networks and convolutions: of cuDNN and MIOpen, on arrays of CuPy "
        "or of any library with DLPack; of a reference, on NumPy arrays. RNN inference also runs "
        "through Vulkan.",
    )
    parser.add_argument("--version", action="version", version=f"dnnffi {__version__}")
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

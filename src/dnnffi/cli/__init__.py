"""The command line: ``dnnffi info``, ``dnnffi demo`` and ``dnnffi bench``, one module each."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from dnnffi import __version__
from dnnffi.cli import bench, demo, info
from dnnffi.cli.command import BROKEN_PIPE, INTERRUPTED, CommandError
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

    0 is success, 1 a failure, 2 a wrong argument, 130 an interruption (Ctrl-C), 141 an output that
    nobody reads any more.
    """
    parser = argparse.ArgumentParser(
        prog=name,
        description="Recurrent networks and convolutions without a deep learning framework. cuDNN "
        "and MIOpen compute on arrays of CuPy or of any library with DLPack, a reference computes "
        "on NumPy arrays, and Vulkan runs RNN inference on other GPUs.",
    )
    parser.add_argument("--version", action="version", version=f"dnnffi {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME, help=command.HELP, description=command.DESCRIPTION
        )
        subparser.set_defaults(command=command, parser=subparser)
        command.add_arguments(subparser)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # argparse itself would show the usage of the whole program.
        used = getattr(options, "parser", parser)
        used.error(f"unrecognized arguments: {' '.join(unknown)}")
    if "command" not in options:
        parser.print_help()
        return 0
    try:
        code = int(options.command.run(options))
        if sys.stdout is not None:  # it is None if the caller closed it, as the shell's >&- does
            sys.stdout.flush()
        return code
    except CommandError as error:
        print(f"dnnffi {options.command.NAME}: error: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        # The reader of the output ended, as `dnnffi info | head` does. Python flushes the output
        # once more when it ends.
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except (DnnffiError, MemoryError, OSError) as error:
        # CuPy's OutOfMemoryError is a MemoryError too; a full disk is an OSError.
        text = str(error) or "out of memory"
        print(f"dnnffi {options.command.NAME}: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED

"""An interpreter of RDNA3 machine code in waves of 32, made from LLVM's disassembly and tables.

``scalar.py``, ``vector.py`` and ``memory.py`` say what the instructions mean; ``decode.py`` makes
records of the text of ``llvm-objdump``; ``core/`` runs them, compiled with the tables in it.

>>> code = Code(assemble("s_endpgm"), 0)
>>> code.run(0, (32, 1, 1), (32, 1, 1))
1
"""

from __future__ import annotations

from .code import Code, ExecutionError, assemble

__all__ = ["Code", "ExecutionError", "assemble"]

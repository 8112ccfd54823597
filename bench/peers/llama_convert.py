"""llama.cpp's converter for checkpoints with a tokenizer of their own.

    python llama_convert.py SOURCE CHECKPOINT --outtype f32 --outfile FILE [--mmproj]

It knows published tokenizers by a fingerprint and refuses others. The ones here cut text the way
the family's does, so they are declared to be that; and they are byte-level, so that no other kind
is tried first, which would need one more library.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

FAMILY = "qwen2"


def main() -> None:
    if len(sys.argv) < 3 or "--help" in sys.argv:
        raise SystemExit((__doc__ or "").strip())
    source = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    text_model: Any = importlib.import_module("conversion.base").TextModel
    text_model.get_vocab_base_pre = lambda *_: FAMILY
    text_model._set_vocab_sentencepiece = _not_that_kind
    sys.argv = [str(source / "convert_hf_to_gguf.py"), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _not_that_kind(*_: object) -> NoReturn:
    """The answer at which the converter tries the next kind of tokenizer."""
    raise FileNotFoundError("a byte-level tokenizer")


if __name__ == "__main__":
    main()

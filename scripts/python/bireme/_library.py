"""ctypes declarations of bireme.h."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import warnings
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint64, c_void_p

from ._program import NATIVE


class BiremeError(RuntimeError):
    """An error of Bireme. `code` is the exit code of the program for it."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class BiremeWarning(UserWarning):
    """A warning of Bireme, such as "... [W-LENGTH]"."""


class GenerateOptions(ctypes.Structure):
    """bm_generate_options"""

    _fields_ = [
        ("max_new_tokens", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("repetition_penalty", c_double),
        ("num_beams", c_int64),
        ("length_penalty", c_double),
        ("seed", c_uint64),
        ("stops", POINTER(c_char_p)),
        ("slide", c_int),
    ]


class TranslateOptions(ctypes.Structure):
    """bm_translate_options"""

    _fields_ = [
        ("source_prefix", c_char_p),
        ("source_lang", c_char_p),
        ("target_lang", c_char_p),
        ("max_new_tokens", c_int64),
        ("min_new_tokens", c_int64),
        ("num_beams", c_int64),
        ("length_penalty", c_double),
        ("no_repeat_ngram_size", c_int64),
        ("early_stopping", c_int),
    ]


class Facts(ctypes.Structure):
    """bm_model_facts"""

    _fields_ = [
        ("parameters", c_int64),
        ("vocabulary", c_int64),
        ("positions", c_int64),
        ("width", c_int64),
        ("end_token", c_int32),
    ]


class Message(ctypes.Structure):
    """bm_message"""

    _fields_ = [("role", c_char_p), ("text", c_char_p), ("bytes", c_size_t)]


class LabelEntry(ctypes.Structure):
    """bm_label"""

    _fields_ = [
        ("name", c_char_p),
        ("id", c_int64),
        ("score", c_double),
        ("begin", c_size_t),
        ("end", c_size_t),
    ]


class TokenEntry(ctypes.Structure):
    """bm_token"""

    _fields_ = [
        ("id", c_int32),
        ("probability", c_double),
        ("text", c_char_p),
        ("bytes", c_size_t),
    ]


class AnswerSpan(ctypes.Structure):
    """bm_answer_span"""

    _fields_ = [("begin", c_size_t), ("end", c_size_t), ("probability", c_double)]


STREAM = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(ctypes.c_char), c_size_t)

_ids, _text = POINTER(c_int32), [c_char_p, c_size_t]
_generated = [POINTER(GenerateOptions), STREAM, c_void_p, POINTER(c_void_p), POINTER(c_size_t)]
# The functions that return a bm_status, with their arguments.
_calls = {
    "bm_model_open": [c_char_p, POINTER(c_char_p), POINTER(c_void_p)],
    "bm_encode": [c_void_p, *_text, c_int, POINTER(_ids), POINTER(c_int64)],
    "bm_decode": [c_void_p, _ids, c_int64, POINTER(c_void_p), POINTER(c_size_t)],
    "bm_generate": [c_void_p, _ids, c_int64, *_generated],
    "bm_generate_text": [c_void_p, *_text, *_generated],
    "bm_chat": [c_void_p, POINTER(Message), c_int64, *_generated],
    "bm_translate": [
        c_void_p, *_text, POINTER(TranslateOptions), POINTER(c_void_p), POINTER(c_size_t)
    ],  # fmt: skip
    "bm_log_probabilities": [c_void_p, _ids, c_int64, POINTER(c_double)],
    "bm_logits": [c_void_p, _ids, c_int64, POINTER(c_float)],
    "bm_embed": [c_void_p, *_text, POINTER(c_float)],
    "bm_classify": [
        c_void_p, *_text, *_text, c_int64, POINTER(POINTER(LabelEntry)), POINTER(c_int64)
    ],  # fmt: skip
    "bm_fill_mask": [c_void_p, *_text, c_int64, POINTER(POINTER(TokenEntry)), POINTER(c_int64)],
    "bm_answer": [c_void_p, *_text, *_text, POINTER(AnswerSpan)],
}
_others = {
    "bm_version": (c_char_p, []),
    "bm_error": (c_char_p, []),
    "bm_warning": (c_char_p, []),
    "bm_free": (None, [c_void_p]),
    "bm_model_close": (None, [POINTER(c_void_p)]),
    "bm_model_facts_of": (Facts, [c_void_p]),
    "bm_model_checkpoint": (c_char_p, [c_void_p]),
    "bm_generate_defaults": (GenerateOptions, []),
    "bm_translate_defaults": (TranslateOptions, []),
    "bm_generate_end": (c_int, [c_void_p]),
}


def _open_library() -> ctypes.CDLL:
    bundled = sorted((NATIVE / "lib").glob("libbireme.so*"))
    path = os.environ.get("BIREME_LIBRARY") or (
        str(bundled[0]) if bundled else ctypes.util.find_library("bireme")
    )
    if path is None:
        raise ImportError(
            "libbireme is neither in this package nor installed; set BIREME_LIBRARY to its path"
        )
    library = ctypes.CDLL(path)
    for name, arguments in _calls.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = c_int
    for name, (result, arguments) in _others.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = result
    return library


library = _open_library()


def version() -> str:
    """Return the version of the library, for example "0.1.0"."""
    return library.bm_version().decode()


def call(name: str, *arguments: object) -> None:
    """Call a function. Raise BiremeError if it fails, and issue its warnings."""
    code = getattr(library, name)(*arguments)
    if code != 0:
        raise BiremeError(code, library.bm_error().decode(errors="replace"))
    for text in library.bm_warning().decode(errors="replace").splitlines():
        warnings.warn(text, BiremeWarning, stacklevel=4)


def take_text(text: c_void_p, count: c_size_t) -> str:
    """Convert an output text and free it."""
    try:
        return ctypes.string_at(text, count.value).decode(errors="replace")
    finally:
        library.bm_free(text)

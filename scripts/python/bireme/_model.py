"""A model of a checkpoint, used through libbireme."""

from __future__ import annotations

import codecs
import ctypes
import os
import queue
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t
from ctypes import c_void_p
from typing import Iterator, Mapping, NamedTuple, Sequence, Union

import numpy as np

from ._library import STREAM, AnswerSpan, BiremeError, Facts, GenerateOptions, LabelEntry, Message
from ._library import TokenEntry, TranslateOptions, call, library, take_text

Ids = Union[Sequence[int], np.ndarray]
_ENDS = ("none", "token", "stop", "length", "positions", "stream")


class Label(NamedTuple):
    """A label of a text or of a word. `score` is its probability, or the number of a regression."""

    name: str
    id: int
    score: float
    text: str


class Token(NamedTuple):
    """A token in place of a mask token."""

    text: str
    id: int
    probability: float


class Answer(NamedTuple):
    """An answer: characters [begin, end) of the context. It is empty if there is none."""

    text: str
    begin: int
    end: int
    probability: float


def _format_setting(key: str, value: object) -> str:
    """Return "section.key=value"; "section__key" is accepted for "section.key"."""
    text = {None: "null", True: "true", False: "false"}.get(value) if (
        value is None or isinstance(value, bool)
    ) else str(value)
    return f"{key.replace('__', '.')}={text}"


class Model:
    """A model of a checkpoint: a run folder, its checkpoints/ folder, one checkpoint or final/.

    `settings` override the recipe: ``Model("runs/mine", parallel__threads=1)``. One thread at a time
    may use a model; several models may be used at the same time. A model is closed by `close`, at
    the end of a `with` block, or when it is deleted.
    """

    def __init__(self, checkpoint: str | os.PathLike[str], **settings: object) -> None:
        self._handle = c_void_p()
        texts = [_format_setting(key, value).encode() for key, value in settings.items()]
        overrides = (c_char_p * (len(texts) + 1))(*texts, None)
        call("bm_model_open", os.fsencode(checkpoint), overrides, byref(self._handle))
        self._facts: Facts = library.bm_model_facts_of(self._handle)

    def close(self) -> None:
        """Free the model. Raise BiremeError if another thread uses it."""
        if self._handle:
            library.bm_model_close(byref(self._handle))
            if self._handle:
                raise BiremeError(64, library.bm_error().decode(errors="replace"))

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library.bm_model_close(byref(self._handle))

    # ---- properties ----

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint that was selected."""
        return os.fsdecode(library.bm_model_checkpoint(self._handle))

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return self._facts.parameters

    @property
    def vocabulary(self) -> int:
        """Generated ids are in [0, vocabulary). With two vocabularies, it is the one of targets."""
        return self._facts.vocabulary

    @property
    def positions(self) -> int:
        """The maximum length of a sequence in tokens."""
        return self._facts.positions

    @property
    def width(self) -> int:
        """The elements of an embedding."""
        return self._facts.width

    @property
    def end_token(self) -> int | None:
        """The end-of-sequence token; None if the tokenizer has none."""
        return self._facts.end_token if self._facts.end_token >= 0 else None

    @property
    def end_reason(self) -> str:
        """Why the last text ended: token, stop, length, positions, stream; "none" without a text."""
        return _ENDS[library.bm_generate_end(self._handle)]

    # ---- tokens ----

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the token ids of a text [int32]. `special`: names of special tokens become ids."""
        data, ids, count = text.encode(), POINTER(c_int32)(), c_int64()
        call("bm_encode", self._handle, data, len(data), special, byref(ids), byref(count))
        try:
            return np.array(ids[: count.value], dtype=np.int32)
        finally:
            library.bm_free(ctypes.cast(ids, c_void_p))

    def decode(self, ids: Ids) -> str:
        """Return the text of token ids, without special tokens."""
        array, text, count = _make_ids(ids), c_void_p(), c_size_t()
        call("bm_decode", self._handle, _point(array), len(array), byref(text), byref(count))
        return take_text(text, count)

    # ---- generation ----

    def generate(
        self, prompt: str | Ids, *, stream: bool = False, **options: object
    ) -> str | Iterator[str]:
        """Generate the text that follows a prompt, a text or token ids.

        The options are the same as in `bireme generate`: max_new_tokens=100, temperature=1.0,
        top_k=0, top_p=1.0, repetition_penalty=1.0, num_beams=1, length_penalty=1.0, seed=0,
        slide=True, and stop, a string or several. With `stream` the result is an iterator of pieces
        of the text; the generation ends if the iterator is closed.

        The prompt of an encoder-decoder is its source. Without options, such a model has
        temperature=0 and the settings of the checkpoint's generation_config.json.
        """
        if isinstance(prompt, str):
            data = prompt.encode()
            return self._generate("bm_generate_text", (data, len(data)), options, stream)
        ids = _make_ids(prompt)
        return self._generate("bm_generate", (_point(ids), len(ids)), options, stream, ids)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: bool = False,
        **options: object,
    ) -> str | Iterator[str]:
        """Generate the assistant's next message of a conversation.

        A message is ``{"role": "user", "content": "..."}``, with the role system, user or assistant.
        The options are the same as in `generate`.
        """
        texts = [message["content"].encode() for message in messages]
        entries = (Message * len(texts))(
            *(
                Message(message["role"].encode(), text, len(text))
                for message, text in zip(messages, texts)
            )
        )
        return self._generate("bm_chat", (entries, len(texts)), options, stream, texts)

    def translate(self, source: str | Sequence[str], **options: object) -> str | list[str]:
        """Generate the target of a source, or of each of several, with an encoder-decoder.

        The options are the same as in `bireme translate`: source_prefix, source_lang, target_lang,
        max_new_tokens, min_new_tokens, num_beams, length_penalty, no_repeat_ngram_size and
        early_stopping. The defaults come from the checkpoint's generation_config.json.
        """
        settings: TranslateOptions = library.bm_translate_defaults()
        known = {name for name, _ in TranslateOptions._fields_}
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"unknown option {name!r}; the options are {', '.join(sorted(known))}")
            setattr(settings, name, value.encode() if isinstance(value, str) else value)
        targets = []
        for one in [source] if isinstance(source, str) else source:
            data, text, count = one.encode(), c_void_p(), c_size_t()
            call(
                "bm_translate", self._handle, data, len(data), byref(settings), byref(text),
                byref(count),
            )  # fmt: skip
            targets.append(take_text(text, count))
        return targets[0] if isinstance(source, str) else targets

    def _generate(
        self,
        function: str,
        prompt: tuple[object, int],
        options: dict[str, object],
        stream: bool,
        *kept: object,
    ) -> str | Iterator[str]:
        settings, stops = _make_options(options) if options else (None, None)
        if stream:
            return self._stream(function, prompt, settings, (stops, kept))
        text, count = c_void_p(), c_size_t()
        pointer = byref(settings) if settings is not None else None
        call(
            function, self._handle, *prompt, pointer, STREAM(), None, byref(text), byref(count)
        )  # fmt: skip
        return take_text(text, count)

    def _stream(
        self,
        function: str,
        prompt: tuple[object, int],
        settings: GenerateOptions | None,
        kept: tuple[object, ...],
    ) -> Iterator[str]:
        """Yield the pieces of a text, which another thread generates."""
        pieces: queue.Queue[bytes | BaseException | None] = queue.Queue()
        closed = threading.Event()

        def receive(_user: object, text: ctypes._Pointer, count: int) -> int:
            pieces.put(ctypes.string_at(text, count))
            return int(closed.is_set())

        def run() -> None:
            callback = STREAM(receive)
            pointer = byref(settings) if settings is not None else None
            try:
                call(function, self._handle, *prompt, pointer, callback, None, None, None)
                pieces.put(None)
            except BaseException as error:  # raised again in the caller's thread
                pieces.put(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if text := decoder.decode(piece):
                    yield text
            if text := decoder.decode(b"", True):
                yield text
        finally:
            closed.set()
            thread.join()
            del kept

    # ---- probabilities ----

    def logprobs(self, text: str | Ids) -> np.ndarray:
        """Return ln p(token i + 1 | tokens 0 ... i) for each token but the first [float64]."""
        ids = self.encode(text) if isinstance(text, str) else _make_ids(text)
        out = np.empty(max(len(ids) - 1, 0), dtype=np.float64)
        pointer = out.ctypes.data_as(POINTER(c_double))
        call("bm_log_probabilities", self._handle, _point(ids), len(ids), pointer)
        return out

    def logits(self, text: str | Ids) -> np.ndarray:
        """Return the logits of a causal or masked language model [tokens, vocabulary], float32."""
        ids = self.encode(text, special=True) if isinstance(text, str) else _make_ids(text)
        out = np.empty((len(ids), self.vocabulary), dtype=np.float32)
        pointer = out.ctypes.data_as(POINTER(c_float))
        call("bm_logits", self._handle, _point(ids), len(ids), pointer)
        return out

    # ---- predictions ----

    def embed(self, text: str | Sequence[str]) -> np.ndarray:
        """Return the embedding of a text [width], or of several texts [texts, width], float32."""
        texts = [text] if isinstance(text, str) else list(text)
        out = np.empty((len(texts), self.width), dtype=np.float32)
        for row, one in zip(out, texts):
            data = one.encode()
            call("bm_embed", self._handle, data, len(data), row.ctypes.data_as(POINTER(c_float)))
        return out[0] if isinstance(text, str) else out

    def classify(self, text: str, pair: str | None = None, top_k: int = 1) -> list[Label]:
        """Return the labels of a text, of a pair of texts or of each word, or a number.

        The objective of the model selects the result, as in `bireme classify`. For words, top_k
        labels of the first word come first.
        """
        data, second = text.encode(), pair.encode() if pair is not None else None
        labels, count = POINTER(LabelEntry)(), c_int64()
        call(
            "bm_classify", self._handle, data, len(data), second, len(second or b""), top_k,
            byref(labels), byref(count),
        )  # fmt: skip
        try:
            return [
                Label(
                    entry.name.decode(errors="replace"),
                    entry.id,
                    entry.score,
                    data[entry.begin : entry.end].decode(),
                )
                for entry in labels[: count.value]
            ]
        finally:
            library.bm_free(ctypes.cast(labels, c_void_p))

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[Token]]:
        """Return the top_k most probable tokens for each mask token, such as [MASK], of a text."""
        data, tokens, masks = text.encode(), POINTER(TokenEntry)(), c_int64()
        call(
            "bm_fill_mask", self._handle, data, len(data), top_k, byref(tokens), byref(masks)
        )  # fmt: skip
        columns = min(top_k, self.vocabulary)
        try:
            entries = [
                Token(entry.text.decode(errors="replace"), entry.id, entry.probability)
                for entry in tokens[: masks.value * columns]
            ]
        finally:
            library.bm_free(ctypes.cast(tokens, c_void_p))
        return [entries[i * columns : (i + 1) * columns] for i in range(masks.value)]

    def answer(self, question: str, context: str) -> Answer:
        """Find the answer to a question in a context."""
        first, second, span = question.encode(), context.encode(), AnswerSpan()
        call(
            "bm_answer", self._handle, first, len(first), second, len(second), byref(span)
        )  # fmt: skip
        begin = len(second[: span.begin].decode())
        text = second[span.begin : span.end].decode()
        return Answer(text, begin, begin + len(text), span.probability)


def _make_ids(ids: Ids) -> np.ndarray:
    return np.ascontiguousarray(ids, dtype=np.int32)


def _point(ids: np.ndarray) -> ctypes._Pointer:
    return ids.ctypes.data_as(POINTER(c_int32))


def _make_options(options: dict[str, object]) -> tuple[GenerateOptions, object]:
    """Return the options and an object that must outlive them."""
    settings: GenerateOptions = library.bm_generate_defaults()
    stop = options.pop("stop", None)
    known = {name for name, _ in GenerateOptions._fields_} - {"stops"}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}; the options are stop, {', '.join(sorted(known))}")
        setattr(settings, name, value)
    texts = [stop] if isinstance(stop, str) else list(stop or [])
    stops = (c_char_p * (len(texts) + 1))(*(text.encode() for text in texts), None)
    settings.stops = ctypes.cast(stops, POINTER(c_char_p))
    return settings, stops

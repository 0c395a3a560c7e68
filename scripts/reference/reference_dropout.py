"""Computes the dropout masks of Bireme (kernels/dropout.h and base/random.h) in NumPy, and applies
them to models of transformers. In T5, modules replace nn.Dropout. In BART and mBART, a function
replaces the dropout function. reference_seq2seq.py calls this module.
"""
import contextlib

import numpy as np
import torch

RANDOM_DROPOUT = 3                         # enum random_purpose
PROJECTION, FC, SITES = 1, 2, 3            # enum dropout_site


def philox(counter, key):
    """Philox 4x32-10: counter [n, 4], key (low, high); uint64 arrays of 32-bit values."""
    low32 = np.uint64(0xFFFFFFFF)
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k = [int(key) & 0xFFFFFFFF, int(key) >> 32]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), p1 & low32,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p0 & low32]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1)


def blocks(key, indices, purpose):
    i = np.asarray(indices, np.uint64)
    halves = [i & np.uint64(0xFFFFFFFF), i >> np.uint64(32)]
    words = [np.full_like(i, purpose & 0xFFFFFFFF), np.full_like(i, purpose >> 32)]
    return philox(np.stack(halves + words, axis=1), key)


def random_key(seed, purpose, a, b):
    for round_, value in (1, a), (2, b):
        block = blocks(seed, [value], purpose | round_ << 40)[0]
        seed = int(block[0]) | int(block[1]) << 32
    return seed


def make_mask(probability, seed, step, layer, site, rows, columns):
    """The factors of the elements of a site: 0, or the scale of a kept element."""
    index = np.arange(rows * columns, dtype=np.uint64)
    key = random_key(seed, RANDOM_DROPOUT, step, (layer + 1) * SITES + site)
    words = blocks(key, index // np.uint64(8), 0)
    word = words[np.arange(len(index)), (index % np.uint64(8) // np.uint64(2)).astype(int)]
    bits = np.where(index % np.uint64(2) == 0, word & np.uint64(0xFFFF), word >> np.uint64(16))
    threshold = int(probability * 65536 + 0.5)
    scale = 65536 / (65536 - threshold)
    return torch.from_numpy((bits >= threshold) * scale).view(rows, columns)


class Dropout(torch.nn.Module):
    """The dropout of sites [(layer, site), ...], one for each call of a forward pass. The rows of
    the model are the rows of a padded batch with these lengths; the scheme numbers them without
    padding.
    """

    def __init__(self, scheme, lengths, *sites):
        super().__init__()
        self.scheme, self.lengths, self.sites, self.calls = scheme, lengths, sites, 0

    def forward(self, x):
        layer, site = self.sites[self.calls % len(self.sites)]
        self.calls += 1
        return drop(x, self.lengths, self.scheme.probability, self.scheme.step, layer, site)


def drop(x, lengths, probability, step, layer, site):
    """Return x, a padded batch, multiplied by the mask of a site. The mask numbers the rows without
    padding."""
    mask = make_mask(probability, 0, step, layer, site, sum(lengths), x.shape[-1])
    factors, first = torch.zeros_like(x), 0
    for i, length in enumerate(lengths):
        factors[i, :length] = mask[first:first + length]
        first += length
    return x * factors


class StackedScheme:
    """Replaces the dropout of a BART or mBART. Their layers call the dropout function. Each element
    of `sites` describes one call in a forward pass: lengths, probability, layer and site. The
    element is None for attention weights, which have no dropout. `step` is the step of the mask.
    """

    def __init__(self, model, probability, inner_probability, sources, targets):
        self.step, self.sites = 0, []
        first = len(model.model.encoder.layers)
        layers = first + len(model.model.decoder.layers)
        cross, more = layers + 1, 2 * layers + 2   # model_cross_site, model_extra_site
        for lengths, begin, end, embedding in (
            (sources, 0, first, -1), (targets, first, layers, cross + layers)
        ):
            self.sites.append((lengths, probability, embedding, PROJECTION))
            for layer in range(begin, end):
                self.sites += [None, (lengths, probability, layer, PROJECTION)]
                if begin > 0:
                    self.sites += [None, (lengths, probability, cross + layer, PROJECTION)]
                self.sites += [(lengths, inner_probability, more + layer, FC),
                               (lengths, probability, layer, FC)]

    @contextlib.contextmanager
    def apply(self):
        """Replace the dropout function during one forward pass. The pass must make all calls."""
        sites, usual = iter(self.sites), torch.nn.functional.dropout

        def dropout(x, p=0.5, training=True, inplace=False):
            site = next(sites)
            return x if site is None else drop(x, site[0], site[1], self.step, *site[2:])

        torch.nn.functional.dropout = dropout
        try:
            yield
        finally:
            torch.nn.functional.dropout = usual
        assert next(sites, 0) == 0


class Scheme:
    """Replaces the dropout of a T5 model. The attention weights have none. step: of the mask."""

    def __init__(self, model, probability, sources, targets):
        self.probability, self.step = probability, 0
        encoder, decoder = model.encoder, model.decoder
        first = len(encoder.block)
        layers = first + len(decoder.block)
        cross, more = layers + 1, 2 * layers + 2   # model_cross_site, model_extra_site
        encoder.dropout = Dropout(self, sources, (-1, PROJECTION), (more, PROJECTION))
        decoder.dropout = Dropout(
            self, targets, (cross + layers, PROJECTION), (more + first, PROJECTION)
        )
        for stack, lengths, begin in (encoder, sources, 0), (decoder, targets, first):
            for layer, block in enumerate(stack.block, begin):
                block.layer[0].dropout = Dropout(self, lengths, (layer, PROJECTION))
                if begin > 0:
                    block.layer[1].dropout = Dropout(self, lengths, (cross + layer, PROJECTION))
                block.layer[-1].dropout = Dropout(self, lengths, (layer, FC))
                block.layer[-1].DenseReluDense.dropout = Dropout(self, lengths, (more + layer, FC))

    def apply(self):
        return contextlib.nullcontext()

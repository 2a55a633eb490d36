"""Fuzzing of everything that reads bytes which Feeder did not just make itself.

    make fuzz                                   a million inputs of all targets, about 15 minutes
    make fuzz MINUTES=60                        as many as there is time for
    python -m tests.fuzz TARGET --seed N        one input again: what it is, and what happens

``target`` says what a target is, ``targets`` lists them; each is a few lines: how an input is made
from a seed, and what must hold. ``mutate`` damages bytes and values. ``batch`` runs inputs in a
process of its own, ``runner`` watches that process and says which input killed it, ``sanitized``
builds the C parts with AddressSanitizer and UndefinedBehaviorSanitizer. ``planted`` has targets
that crash, hang and leak, by which tests see that all this finds what it should.

Own engine, not atheris: its libFuzzer sees coverage of C only in what clang has compiled, and its
runtime excludes gcc's sanitizers, which Feeder's C parts are built with here; and an input that is
a function of target and seed can be named in a sentence and made again without a corpus.

May import: the product, bench, tests.
"""

"""Fuzzing of all code that reads input from outside: files, sockets, options, the system.

    make fuzz                                   a million inputs of all targets, about 15 minutes
    make fuzz MINUTES=60                        as many as fit into 60 minutes
    python -m tests.fuzz TARGET --seed N        reproduce one input: print it and run it
    make fuzz-decode                            two million damaged samples, decoded in C alone

``target`` defines a target: how an input is made from a seed, what reads it and what must hold;
``targets`` lists them. ``mutate`` damages bytes and values, ``pictures`` JPEGs. ``batch`` runs
inputs: in `make test` within pytest, else in a process of its own. ``runner`` watches that process
and reports which input killed it, ``sanitized`` builds the C parts with
AddressSanitizer and UndefinedBehaviorSanitizer. ``windows`` runs a program of its own in C
(``native``), which decodes thousands of samples a second. ``planted`` has targets that crash, hang
and leak, which prove that the harness finds such faults.

The engine is our own and not atheris: libFuzzer needs C compiled by clang for its coverage, and its
runtime conflicts with gcc's sanitizers, which the C parts are built with here. An input that is a
function of target and seed can be reproduced without a corpus.

May import: the product, bench, tests.
"""

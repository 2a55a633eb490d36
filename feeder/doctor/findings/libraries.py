"""Findings about the daemon's libraries and how they were built."""

from collections.abc import Iterator

from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding, Severity

_SHRINKING = (
    "Packing with `--max-side` and some augmentations use it. Shrinking 2000 × 1500 pixels to 512 "
    "took "
)
_MEASURED = " (one core of an AMD EPYC)."


def find_broken_libraries(machine: Machine) -> Iterator[Finding]:
    """Yield findings about what would keep the daemon from starting."""
    libraries = machine.libraries
    if libraries.missing:
        one = len(libraries.missing) == 1
        yield Finding(
            name="libraries",
            severity=Severity.ERROR,
            what=(
                f"{'this library is' if one else 'these libraries are'} not installed in this "
                f"environment: {', '.join(libraries.missing)}"
            ),
            detail=(
                "`feeder serve`, or another command that needs "
                f"{'it' if one else 'one of them'}, ends with an error. The other libraries were "
                "not looked at."
            ),
            mend=(libraries.install,),
        )
    if libraries.problem:
        yield Finding(
            name="libraries",
            severity=Severity.ERROR,
            what=libraries.problem,
            detail="`feeder serve` would not start.",
            mend=(libraries.install,),
        )
    if libraries.self_test_problem:
        yield Finding(
            name="self-test",
            severity=Severity.ERROR,
            what=libraries.self_test_problem,
            detail="`feeder serve` would not start.",
            mend=('decoder = "turbojpeg"   # under [serve]; samples take twice as long',),
        )


def find_pillow(machine: Machine) -> Iterator[Finding]:
    """Yield findings about a Pillow that works, but slower or on fewer formats."""
    libraries = machine.libraries
    for line in libraries.pillow_problems:
        what, _, rest = line.partition(": ")
        if "Pillow-SIMD" in what:
            yield Finding(
                name="pillow",
                severity=Severity.WARNING,
                what=what,
                detail=(
                    f"{_SHRINKING}31.4 ms with Pillow 13.0.0 and 4.3 ms with Pillow-SIMD 12.1.1"
                    f"{_MEASURED} Packed and augmented pixels can differ from other feeders'."
                ),
                mend=("pip uninstall -y pillow", *_build_pillow(machine)),
            )
        else:
            quarantined = rest.partition(";")[0]
            yield Finding(
                name="pillow-formats",
                severity=Severity.WARNING,
                what=what,
                detail=f"{quarantined[:1].upper()}{quarantined[1:]}." if quarantined else "",
                mend=(
                    "sudo apt-get install libtiff-dev libwebp-dev",
                    *_build_pillow(machine),
                ),
            )
    if _is_wide(machine) and libraries.pillow_is_simd and libraries.pillow_has_avx2 is False:
        yield Finding(
            name="pillow-vectors",
            severity=Severity.WARNING,
            what="Pillow-SIMD was built for SSE4, and this CPU has AVX2",
            detail=f"{_SHRINKING}4.8 ms with SSE4 and 4.3 ms with AVX2{_MEASURED}",
            mend=_build_pillow(machine),
        )


def _build_pillow(machine: Machine) -> tuple[str, ...]:
    compiler = "CC='cc -mavx2' " if _is_wide(machine) else ""
    return (
        f"{compiler}pip install --force-reinstall --no-deps \\",
        "    --no-cache-dir --no-binary pillow-simd 'pillow-simd>=11.2'",
    )


def _is_wide(machine: Machine) -> bool:
    return machine.processor.vectors in ("AVX2", "AVX-512")


def find_weak_crypto(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if libzmq has no libsodium."""
    crypto = machine.libraries.crypto
    if crypto not in ("tweetnacl", "none"):
        return
    without = crypto == "none"
    yield Finding(
        name="crypto",
        severity=Severity.WARNING,
        what=(
            "libzmq was built without encryption (CURVE)"
            if without
            else "libzmq encrypts with tweetnacl, not with libsodium"
        ),
        detail=(
            "Only clients of this machine can connect: keys, and so tcp to other machines, do not "
            "work."
            if without
            else "tcp with keys is much slower: tweetnacl has no vector code. With libsodium it "
            "has 0.81 times the rate of plain tcp (docs/performance.md)."
        ),
        mend=("pip install --force-reinstall --only-binary pyzmq 'pyzmq>=26,<28'",),
    )

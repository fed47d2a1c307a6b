"""Effect of one call on errors: how much it may round, and how much it amplifies the errors of its inputs.

Two libraries that compute the same use different summation orders, fuse multiplications with additions or not, compute
variances in one pass or in two, and approximate elementary functions. None of that is a fault. The resulting
differences follow from the operation and from the sizes of inputs and outputs, which statistics show.
``u`` is the unit round-off; errors are relative to the norm of a tensor.

Sums of products
    Let every result be a sum of ``K`` products. The rounding of each addition is relative to the partial sum, which is
    ``k / K`` of the whole plus a random walk with steps of the size of a term. Independent roundings add up as squares
    (Higham and Mary, *A New Approach to Probabilistic Rounding Error Analysis*, SIAM J. Sci. Comput. 41(5), 2019): ``K
    / 3`` for the first part, and for the second half of the square of ``|A| |B| / |C|``, where ``|A| |B|`` is ``K
    sqrt(number of results) rms(a) rms(b)``. That ratio is the condition of the sums: it is large if terms cancel
    (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sec. 3.1 and 4.2). Blocked sums and fused
    multiplications round less. Errors of the factors that are independent between elements are amplified by the
    condition over ``sqrt(K)``, common errors by the condition.
Sums, means, gradients of biases and of broadcast values
    The same with one factor.
Normalisations
    Their statistics are sums of ``K`` elements. With ``k^2 = mean(x^2) / var(x)``, the mean is off by ``u sqrt(K / 3)
    k`` standard deviations, and the variance by ``u sqrt(K / 3)`` if it is computed in two passes, by ``k^2`` times
    that in one (Chan, Golub and LeVeque, *Algorithms for Computing the Sample Variance*, The American Statistician
    37(3), 1983); the standard deviation by half of it. Subtracting the mean amplifies the input's error by ``k``. In
    backward, two projections are subtracted from the gradient: all errors are amplified by the ratio of the size
    before, ``g / sigma``, to the size after.
Softmax
    Exponentials turn absolute errors into relative ones. Elements more than ``ln(1 / u)`` below the largest contribute
    nothing, so the relevant size is that of the largest element plus this margin, not that of a mask.
Elementwise functions
    The maximum of ``|f'|``, times the ratio of the sizes of input and output; in backward also ``|f''|`` for the saved
    input. Results are rounded in the last two digits, and a framework's approximations add their documented errors.
Copies
    Round nothing. A selected part may be smaller than the whole, and has the same absolute error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msprobe_core.judge.noise.operations import Kind, Operations, kind_of, known_as

ACCUMULATED = 2.0**-24
"""Unit round-off of sums: coarser formats are summed in float32."""


class Size(NamedTuple):
    """Size of a tensor.

    Attributes:
        numel: Number of elements, at least 1.
        norm: Euclidean norm.
        mean: Mean of the elements.
        high: Largest element.
        low: Smallest element.
        shape: Dimensions.
    """

    numel: float
    norm: float
    mean: float
    high: float
    low: float
    shape: tuple[int, ...]

    @property
    def rms(self) -> float:
        """Root mean square of the elements."""
        return self.norm / math.sqrt(self.numel)

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(abs(self.high), abs(self.low))

    @property
    def smallest(self) -> float:
        """Smallest magnitude as far as it is known: 0 for elements of both signs."""
        return max(self.low, -self.high, 0.0)


class Error(NamedTuple):
    """How far a tensor may be off, in units of its norm.

    Attributes:
        spread: Error from roundings, which are independent between most elements.
        shift: Error from approximations, which elements have in common, so that it does not average out.
    """

    spread: float = 0.0
    shift: float = 0.0

    def times(self, gain: float, of_shift: float | None = None) -> Error:
        """Return the error after a gain; ``of_shift`` is the gain of the shift, if it differs."""
        return Error(min(self.spread * gain, 1.0), min(self.shift * (gain if of_shift is None else of_shift), 1.0))


def together(errors: Sequence[Error]) -> Error:
    """Return the combination of independent errors."""
    return Error(
        min(math.sqrt(sum(error.spread**2 for error in errors)), 1.0), min(sum(error.shift for error in errors), 1.0)
    )


class Operand(NamedTuple):
    """An input or output of a call.

    Attributes:
        size: Its size.
        error: How far it may be off.
        place: Its position in the call, such as ``0`` or ``weight``.
        is_parameter: Whether it is a parameter of the module.
    """

    size: Size
    error: Error = Error()
    place: str = "0"
    is_parameter: bool = False


class Forward(NamedTuple):
    """A forward call.

    Attributes:
        operation: Canonical name.
        given: Its inputs, in order.
        result: Its output.
    """

    operation: str
    given: Sequence[Operand]
    result: Operand


class Backward(NamedTuple):
    """One gradient that a backward call computes.

    Attributes:
        forward: The forward call.
        gradient: Incoming gradient.
        place: Position of the input to which the computed gradient belongs.
        result: Size of the computed gradient.
    """

    forward: Forward
    gradient: Operand
    place: str
    result: Size


class Effect(NamedTuple):
    """Effect of a call on errors.

    Attributes:
        own: Its own rounding, besides the last digit.
        inherited: The amplified errors of its inputs.
    """

    own: Error
    inherited: Error


def of_forward(call: Forward, operations: Operations) -> Effect:
    """Return the effect of a forward call on its result."""
    kind = kind_of(call.operation)
    if not call.given:
        return Effect(Error(), Error())
    return _FORWARD[kind](call, operations)


def of_backward(call: Backward, operations: Operations) -> Effect:
    """Return the effect of a backward call on the gradient that it computes."""
    if not call.forward.given:
        return Effect(Error(), call.gradient.error)
    return _BACKWARD[kind_of(call.forward.operation)](call, operations)


# --- formulas ---------------------------------------------------------------------------------------------------------


def _ratio(a: float, b: float) -> float:
    """Return ``a / b``; a division by zero counts as complete loss of precision."""
    return a / b if b > 0 and math.isfinite(a / b) else 1 / ACCUMULATED


def _sums(num_terms: float) -> float:
    """Return the error of a sum whose terms have one sign."""
    return ACCUMULATED * math.sqrt(max(num_terms, 1.0) / 3)


def _contracted(num_terms: float, rms: float, result: Size, *, factor: float = 1.0) -> tuple[float, float, float]:
    """Return the rounding of sums of products, and their gains for independent and for common errors.

    Args:
        num_terms: Number of terms of each sum.
        rms: Root mean square of the terms, the product of those of the factors.
        result: Size of the result.
        factor: Factor by which the sums are multiplied, such as one over the number of terms for a mean.
    """
    terms = max(num_terms, 1.0)
    condition = _ratio(terms * math.sqrt(result.numel) * rms * factor, result.norm)
    own = ACCUMULATED * math.sqrt(terms / 3 + condition**2 / 2) if terms > 1 else 0.0
    return own, max(1.0, condition / math.sqrt(terms)), max(1.0, condition)


def _deviation(given: Size) -> float:
    """Return the standard deviation of a tensor's elements, or its rounding error if that is larger."""
    return math.sqrt(max(given.rms**2 - given.mean**2, ACCUMULATED * given.rms**2))


_FAR = 17.0
"""``ln(1 / u)`` in float32: elements farther below the largest add nothing to a sum of exponentials."""


def _exponent(given: Size) -> float:
    """Return the size of the elements that contribute to a sum of exponentials."""
    return max(1.0, min(given.rms, abs(given.high) + _FAR))


def _derivatives(operation: str, given: Size) -> tuple[float, float]:
    """Return the largest first and second derivative of an elementwise function; 1 for bounded ones."""
    known = known_as(operation)
    if known in _EXPONENTIALS:
        largest = math.exp(min(given.largest if known == "cosh" else given.high, 80.0))
        return largest, largest
    if known in _POWERS:
        power = _POWERS[known]
        # Steepest at the smallest magnitude, except for powers above 1; if that is unknown, use the typical magnitude.
        at = given.largest if power > 1 else (given.smallest or given.rms)
        scale = 1.0 if power == 0 else abs(power)
        return scale * _power(at, power - 1), scale * abs(power - 1) * _power(at, power - 2)
    return 1.0, 1.0


def _power(base: float, exponent: float) -> float:
    try:
        return base**exponent if base > 0 else 0.0
    except OverflowError:
        return 1 / ACCUMULATED


_EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "sinh", "cosh"})
_POWERS = {"log": 0.0, "log1p": 0.0, "log2": 0.0, "log10": 0.0, "sqrt": 0.5, "rsqrt": -0.5, "pow": 2.0}
"""Exponent of the power with the same derivatives as a function, 0 for logarithms."""


def _main(operands: Sequence[Operand]) -> Operand:
    """Return the main operand of a call: the largest input, and no parameter if there is another input."""
    own = [each for each in operands if not each.is_parameter] or operands
    return max(own, key=lambda each: each.size.numel)


def _factors(call: Forward) -> tuple[Operand, Operand] | None:
    """Return the two factors of a sum of products, in order: the largest operands, if possible matrices."""
    wide = [each for each in call.given if len(each.size.shape) > 1]
    found = wide if len(wide) > 1 else list(call.given)
    if len(found) < 2:
        return None
    chosen = sorted(range(len(found)), key=lambda i: -found[i].size.numel)[:2]
    first, second = sorted(chosen)
    return found[first], found[second]


def _num_products(call: Forward, factors: tuple[Operand, Operand]) -> float:
    """Return the number of products in each sum of a forward call."""
    first, second = (each.size for each in factors)
    if kind_of(call.operation) is Kind.CONVOLUTION:
        channels = max(second.shape[0] if second.shape else 1, 1)
        if known_as(call.operation) == "convtranspose":
            return first.numel * (second.numel / channels) / call.result.size.numel
        return second.numel / channels
    return first.shape[-1] if first.shape else 1.0


# --- forward ----------------------------------------------------------------------------------------------------------


def _copied(call: Forward, _: Operations) -> Effect:
    rms = call.result.size.rms
    errors = [each.error.times(max(1.0, _ratio(each.size.rms, rms))) for each in call.given if each.error.spread]
    return Effect(Error(), max(errors, default=Error()))


def _added(call: Forward, _: Operations) -> Effect:
    size = call.result.size
    return Effect(Error(), together([each.error.times(_ratio(each.size.rms, size.rms)) for each in call.given]))


def _multiplied(call: Forward, _: Operations) -> Effect:
    product = math.prod(each.size.rms for each in call.given) if len(call.given) > 1 else 0.0
    gain = max(1.0, _ratio(product, call.result.size.rms)) if product else 1.0
    return Effect(Error(), together([each.error.times(gain) for each in call.given]))


def _divided(call: Forward, _: Operations) -> Effect:
    if len(call.given) < 2:
        return Effect(Error(), call.given[0].error)
    above, below = call.given[:2]
    # The error of a small divisor is large relative to the divisor.
    gain = below.size.rms / below.size.smallest if below.size.smallest else 1.0
    return Effect(Error(), together([above.error, below.error.times(gain)]))


def _contraction(call: Forward, operations: Operations) -> Effect:
    factors = _factors(call)
    if factors is None:
        return _other(call, operations)
    first, second = factors
    own, gain, _ = _contracted(_num_products(call, factors), first.size.rms * second.size.rms, call.result.size)
    return Effect(Error(own), together([first.error, second.error]).times(gain))


_MEANS = frozenset({"mean", "nanmean", "avgpool", "adaptiveavgpool"})


def _summed(call: Forward, _: Operations) -> Effect:
    given, result = _main(call.given), call.result.size
    terms = given.size.numel / result.numel
    terms = terms if terms > 1 else max(given.size.shape, default=1)
    is_mean = known_as(call.operation) in _MEANS
    own, gain, common = _contracted(terms, given.size.rms, result, factor=1 / terms if is_mean else 1.0)
    return Effect(Error(own), given.error.times(gain, common))


def _difference(call: Forward, _: Operations) -> Effect:
    """Effect of a loss of a difference: the errors of its inputs are large relative to a small difference."""
    given = _main(call.given)
    apart = call.result.size.largest
    apart = math.sqrt(apart) if known_as(call.operation) == "mse" else apart
    gain = max(1.0, _ratio(2 * given.size.rms, apart))
    return Effect(Error(_sums(given.size.numel) + gain * ACCUMULATED), given.error.times(gain))


def _num_normalised(call: Forward, given: Size) -> float:
    """Return the number of elements over which a normalisation computes its statistics, or an upper bound."""
    known, result = known_as(call.operation), call.result.size
    vectors = [each.size for each in call.given if each.size is not given and each.size.numel < given.numel]
    if known in {"layernorm", "rmsnorm"}:
        return max((each.numel for each in vectors), default=given.shape[-1] if given.shape else 1)
    if known in {"batchnorm", "syncbatchnorm"}:
        channels = max((each.numel for each in vectors), default=given.shape[1] if len(given.shape) > 1 else 1)
        return given.numel / channels
    if result.numel < given.numel:
        return given.numel / result.numel
    return given.numel / max(given.shape[0] if given.shape else 1, 1)


_WITHOUT_MEAN = frozenset({"rmsnorm", "normalize", "norm"})


def _condition(call: Forward, given: Size) -> float:
    """Return the ratio of the sizes before and after subtraction of the mean."""
    return 1.0 if known_as(call.operation) in _WITHOUT_MEAN else given.rms / _deviation(given)


def _normalised(call: Forward, _: Operations) -> Effect:
    given = _main(call.given)
    condition = _condition(call, given.size)
    own = _sums(_num_normalised(call, given.size)) * (condition + condition**2 / 2)
    return Effect(Error(min(own, 1.0)), given.error.times(condition))


def _softmax(call: Forward, operations: Operations) -> Effect:
    given = _main(call.given)
    shift = operations.approximation(call.operation, given.size.largest)
    exponent = _exponent(given.size)
    return Effect(Error(ACCUMULATED * 2 + _sums(max(given.size.shape, default=1)), shift), given.error.times(exponent))


def _log_softmax(call: Forward, operations: Operations) -> Effect:
    given, rms = _main(call.given), max(call.result.size.rms, ACCUMULATED)
    exponent = _exponent(given.size)
    own = (ACCUMULATED * exponent + _sums(max(given.size.shape, default=1))) / rms
    shift = operations.approximation(call.operation, given.size.largest) / rms
    return Effect(Error(min(own, 1.0), min(shift, 1.0)), given.error.times(max(1.0, exponent / rms)))


def _function(call: Forward, operations: Operations) -> Effect:
    given, result = _main(call.given), call.result.size
    first, _ = _derivatives(call.operation, given.size)
    error = operations.approximation(call.operation, given.size.largest)
    # Approximation errors of bounded functions are absolute, relative to 1; those of exponentials are relative.
    shift = error if known_as(call.operation) in _EXPONENTIALS else _ratio(error, result.rms)
    gain = max(1.0, _ratio(first * given.size.rms, result.rms))
    return Effect(Error(2 * ACCUMULATED, min(shift, 1.0)), given.error.times(gain))


def _num_steps(call: Forward) -> float:
    """Return the number of sequential cells of a recurrent layer: its time steps times its layers."""
    shape = _main(call.given).size.shape
    layers = max(1, sum(each.is_parameter for each in call.given) // 4)
    return layers * (max(shape[:2]) if len(shape) > 2 else 1)


def _recurrent(call: Forward, operations: Operations) -> Effect:
    given = _main(call.given)
    cell = ACCUMULATED * math.sqrt(4 + 5 / 6 * 2 * (given.size.shape[-1] if given.size.shape else 1))
    shift = operations.approximation(call.operation, given.size.largest)
    return Effect(Error(cell * math.sqrt(_num_steps(call)), shift), together([each.error for each in call.given]))


def _other(call: Forward, _: Operations) -> Effect:
    terms = max((max(each.size.shape, default=1) for each in call.given), default=1)
    own = ACCUMULATED * math.sqrt(terms * 5 / 6) if terms > 1 else 0.0
    return Effect(Error(own), together([each.error for each in call.given]))


_FORWARD: Mapping[Kind, Callable[[Forward, Operations], Effect]] = {
    Kind.COPY: _copied, Kind.ROUND: _added, Kind.PRODUCT: _multiplied, Kind.QUOTIENT: _divided,
    Kind.CONTRACTION: _contraction, Kind.CONVOLUTION: _contraction, Kind.SUM: _summed, Kind.DIFFERENCE: _difference,
    Kind.NORM: _normalised, Kind.SOFTMAX: _softmax, Kind.LOG_SOFTMAX: _log_softmax, Kind.FUNCTION: _function,
    Kind.RECURRENT: _recurrent, Kind.OTHER: _other,
}  # fmt: skip


# --- backward ---------------------------------------------------------------------------------------------------------


def _passed_on(call: Backward, rms: float = 1.0) -> Effect:
    """The effect on a gradient passed on times a factor of size ``rms``, and summed over broadcast dimensions."""
    gradient = call.gradient
    terms = gradient.size.numel / call.result.numel
    if terms > 1:
        own, gain, common = _contracted(terms, gradient.size.rms * rms, call.result)
    else:
        own, gain = 0.0, max(1.0, _ratio(gradient.size.norm * rms, call.result.norm))
        common = gain
    return Effect(Error(own), gradient.error.times(gain, common))


def _copied_back(call: Backward, _: Operations) -> Effect:
    found = _passed_on(call)
    # Rows that were selected several times, as in an embedding, are summed.
    return Effect(Error(max(found.own.spread, ACCUMULATED)), found.inherited)


def _others(call: Backward) -> list[Operand]:
    return [each for each in call.forward.given if each.place != call.place]


def _multiplied_back(call: Backward, _: Operations) -> Effect:
    others = _others(call)
    if not others:
        return Effect(Error(), call.gradient.error)
    found = _passed_on(call, math.prod(each.size.rms for each in others))
    return Effect(found.own, together([found.inherited, *[each.error for each in others]]))


def _divided_back(call: Backward, _: Operations) -> Effect:
    if len(call.forward.given) < 2:
        return Effect(Error(), call.gradient.error)
    above, below = call.forward.given[:2]
    is_above = call.place == above.place
    size = 1 / max(below.size.rms, ACCUMULATED) * (1.0 if is_above else call.forward.result.size.rms)
    gain = below.size.rms / below.size.smallest if below.size.smallest else 1.0
    found = _passed_on(call, size)
    return Effect(found.own, together([found.inherited, below.error.times(gain), above.error]))


def _contraction_back(call: Backward, operations: Operations) -> Effect:
    factors = _factors(call.forward)
    if factors is None:
        return _other_back(call, operations)
    other = next((each for each, own in zip(factors[::-1], factors, strict=True) if own.place == call.place), None)
    if other is None:
        return _passed_on(call)
    products = call.forward.result.size.numel * _num_products(call.forward, factors)
    own, gain, _ = _contracted(products / call.result.numel, call.gradient.size.rms * other.size.rms, call.result)
    return Effect(Error(own), together([call.gradient.error, other.error]).times(gain))


def _summed_back(call: Backward, _: Operations) -> Effect:
    if call.gradient.size.numel != call.result.numel:
        return Effect(Error(), call.gradient.error)
    own, gain, common = _contracted(max(call.result.shape, default=1), call.gradient.size.rms, call.result)
    return Effect(Error(own), call.gradient.error.times(gain, common))


def _difference_back(call: Backward, _: Operations) -> Effect:
    given = _main(call.forward.given)
    apart = call.forward.result.size.largest
    apart = math.sqrt(apart) if known_as(call.forward.operation) == "mse" else apart
    gain = max(1.0, _ratio(given.size.rms, apart))
    return Effect(Error(gain * ACCUMULATED), together([call.gradient.error, given.error.times(gain)]))


_KEYWORDS = frozenset({"batchnorm", "syncbatchnorm", "instancenorm"})
"""Normalisations whose weight is not the third argument."""


def _normalised_back(call: Backward, _: Operations) -> Effect:
    forward, gradient = call.forward, call.gradient
    given = _main(forward.given)
    terms = _num_normalised(forward, given.size)
    if call.place != given.place:
        # Weight: sums of the gradient times normalised values, whose size is 1. Bias: sums of the gradient.
        own, gain, common = _contracted(gradient.size.numel / call.result.numel, gradient.size.rms, call.result)
        error = together([gradient.error, given.error.times(_condition(forward, given.size))])
        return Effect(Error(own), error.times(gain, common))
    place = "weight" if known_as(forward.operation) in _KEYWORDS else "2"
    weights = [each.size.rms for each in forward.given if each.place in {"weight", place}]
    scale = weights[0] if weights else 1.0
    gain = max(1.0, _ratio(scale * gradient.size.rms, _deviation(given.size) * call.result.rms))
    condition = _condition(forward, given.size)
    own = gain * (ACCUMULATED + _sums(terms) * (condition + condition**2 / 2))
    return Effect(Error(min(own, 1.0)), together([gradient.error, given.error.times(condition)]).times(gain))


def _softmax_back(call: Backward, operations: Operations) -> Effect:
    gradient, made = call.gradient, call.forward.result
    terms = min(gradient.size.largest * made.size.norm, made.size.largest * gradient.size.norm)
    gain = max(1.0, _ratio(terms, call.result.norm))
    shift = operations.approximation(call.forward.operation, _main(call.forward.given).size.largest)
    own = Error(2 * ACCUMULATED + _sums(max(call.result.shape, default=1)), shift)
    return Effect(own.times(gain), together([gradient.error, made.error]).times(gain))


def _log_softmax_back(call: Backward, operations: Operations) -> Effect:
    gradient, given = call.gradient, _main(call.forward.given)
    if gradient.size.numel > 1:
        gain = max(1.0, _ratio(2 * gradient.size.norm, call.result.norm))
    else:  # a loss: a probability less 1 for each row, over the number of rows
        rows = max(given.size.numel / max(given.size.shape[-1:], default=1), 1.0)
        gain = max(1.0, _ratio(gradient.size.largest, math.sqrt(rows) * call.result.norm))
    shift = operations.approximation(call.forward.operation, given.size.largest)
    own = Error(2 * ACCUMULATED + _sums(max(call.result.shape, default=1)), shift)
    return Effect(own.times(gain), together([gradient.error, given.error.times(_exponent(given.size))]).times(gain))


def _function_back(call: Backward, operations: Operations) -> Effect:
    gradient, given = call.gradient, _main(call.forward.given)
    first, second = _derivatives(call.forward.operation, given.size)
    gain = max(1.0, _ratio(first * gradient.size.norm, call.result.norm))
    bent = _ratio(second * gradient.size.rms * given.size.norm, call.result.norm)
    shift = operations.approximation(call.forward.operation, given.size.largest)
    own = Error(2 * ACCUMULATED, shift).times(gain)
    return Effect(own, together([gradient.error.times(gain), given.error.times(bent)]))


def _other_back(
    call: Backward, operations: Operations, formula: Callable[[Forward, Operations], Effect] = _other
) -> Effect:
    forward = formula(call.forward, operations)
    found = _passed_on(call)
    return Effect(together([forward.own, found.own]), together([found.inherited, forward.inherited]))


_BACKWARD: Mapping[Kind, Callable[[Backward, Operations], Effect]] = {
    Kind.COPY: _copied_back, Kind.ROUND: lambda call, _: _passed_on(call), Kind.PRODUCT: _multiplied_back,
    Kind.QUOTIENT: _divided_back, Kind.CONTRACTION: _contraction_back, Kind.CONVOLUTION: _contraction_back,
    Kind.SUM: _summed_back, Kind.DIFFERENCE: _difference_back, Kind.NORM: _normalised_back, Kind.SOFTMAX: _softmax_back,
    Kind.LOG_SOFTMAX: _log_softmax_back, Kind.FUNCTION: _function_back, Kind.OTHER: _other_back,
    Kind.RECURRENT: lambda call, operations: _other_back(call, operations, _recurrent),
}  # fmt: skip

"""Energy of sending, receiving and computing.

    transmit   E = P / eta * B / W        B = bits / gamma in Hz·s                                  (1)
    receive    E = P_rx * B / W           devices only                                              (2)
    compute    E = c f^2 kappa n          n examples, forward and backward                          (3)

Eq. 1 and 2 are power times time on air, where B / W is a transfer's time on the whole band W.  Power is spread evenly
over the band (wireless.py): a share x of the band takes 1/x as long at x times the power.  So the joules do not depend
on the schedule.

Eq. 3, its kappa and the order of c are those of Z. Yang, M. Chen, W. Saad, C. S. Hong, M. Shikh-Bahaei, "Energy
Efficient Federated Learning Over Wireless Communication Networks", IEEE Trans. Wireless Communications 20(3), 2021:
kappa = 1e-28, c between 1e4 and 3e4 cycles.  The other defaults are assumptions, not measurements.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Interval

from unskew.world.place import Array


@dataclass(frozen=True)
class Energy:
    """Power and energy of a device's electronics.

    Attributes:
        amplifier_efficiency: eta, radiated over consumed power; 1 counts only the radiated power, an assumption.
        receive_w: P_rx, power of a receiving device, watt; 0 leaves receiving out, an assumption.
        capacitance: kappa, effective switched capacitance, J/(Hz^2 cycle); Yang et al.
        clock_hz: f, cycles per second; an assumption.
        cycles_per_example: c, of one training example; Yang et al.  It grows with the network: set it for yours.
        joules_per_example: Replaces eq. 3 if given, for example by a measurement.
    """

    amplifier_efficiency: Annotated[float, Interval(gt=0.0, le=1.0)] = 1.0
    receive_w: Annotated[float, Ge(0.0)] = 0.0
    capacitance: Annotated[float, Gt(0.0)] = 1e-28
    clock_hz: Annotated[float, Gt(0.0)] = 1e9
    cycles_per_example: Annotated[float, Gt(0.0)] = 2e4
    joules_per_example: Annotated[float, Ge(0.0)] | None = None

    def transmit_j(self, power_w: Array, hz_s: Array, bandwidth_hz: float) -> Array:
        """Energy of transfers (eq. 1), joules, (links,).

        Args:
            power_w: Power of each sender over the whole band, watt, (links,).
            hz_s: Bandwidth times time of each transfer, (links,).
            bandwidth_hz: W.
        """
        return power_w / self.amplifier_efficiency * hz_s / bandwidth_hz

    def receive_j(self, hz_s: Array, bandwidth_hz: float) -> Array:
        """Energy of receiving transfers (eq. 2), joules, (links,)."""
        return self.receive_w * hz_s / bandwidth_hz

    def compute_j(self, examples: float) -> float:
        """Energy of training on a number of examples (eq. 3), joules."""
        if self.joules_per_example is not None:
            return self.joules_per_example * examples
        return self.capacitance * self.clock_hz**2 * self.cycles_per_example * examples

    def compute_s(self, examples: float) -> float:
        """Time of one device for a number of examples, seconds: c n / f."""
        return self.cycles_per_example * examples / self.clock_hz

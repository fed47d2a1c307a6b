"""Happens-before in a job of several processes: one partial order over the calls of all ranks."""

from msprobe_core.order.causality import Node, Order, order_of

__all__ = ["Node", "Order", "order_of"]

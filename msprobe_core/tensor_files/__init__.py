"""Files with tensors that other programs wrote: which format they have, and their tensors, read on demand."""

"""The sequence batcher: requests with one correlation id reach one slot of one instance, in order (S50 to S73).

`slots` is what both strategies share: which sequence has which slot, and who waits for one. `direct` and `oldest` form
batches of it. `controls` makes the tensors that tell a model of its sequences. Pure policies, told the time; loop
thread.
"""

from halimede.scheduling.sequences.controls import Controls
from halimede.scheduling.sequences.direct import DirectPolicy
from halimede.scheduling.sequences.oldest import OldestPolicy
from halimede.scheduling.sequences.slots import Rules

__all__ = ["Controls", "DirectPolicy", "OldestPolicy", "Rules"]

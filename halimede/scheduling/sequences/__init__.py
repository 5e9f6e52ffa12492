"""The sequence batcher: requests with one correlation id reach one slot of one instance, in order (S50 to S73).

`slots` assigns slots to sequences and keeps those that wait for one; both strategies share it. `direct` and `oldest`
form batches. `controls` makes the tensors that describe a sequence to its model. Policies that read no clock; loop
thread.
"""

from halimede.scheduling.sequences.controls import Controls
from halimede.scheduling.sequences.direct import DirectPolicy
from halimede.scheduling.sequences.oldest import OldestPolicy
from halimede.scheduling.sequences.slots import SequenceRules

__all__ = ["Controls", "DirectPolicy", "OldestPolicy", "SequenceRules"]

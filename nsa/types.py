"""Shape letters and the jaxtyping aliases of the public signatures.

B batch rows · S key/value tokens · T query tokens (T = S in training, T <= S in decoding) · H query heads ·
G key/value groups · h = H/G query heads per group · Dk, Dv head sizes · C compressed blocks · n selection slots.
"""

from jaxtyping import Float, Int
from torch import Tensor

Hidden = Float[Tensor, "B T dim"]
TokenIds = Int[Tensor, "B T"]
Logits = Float[Tensor, "B T vocab"]
Query = Float[Tensor, "B T H Dk"]
Key = Float[Tensor, "B S G Dk"]
Value = Float[Tensor, "B S G Dv"]
CompressedKey = Float[Tensor, "B C G Dk"]
CompressedValue = Float[Tensor, "B C G Dv"]
Output = Float[Tensor, "B T H Dv"]
GateWeights = Float[Tensor, "B T G 3"]
Slots = Int[Tensor, "B T G n"]
CuSeqlens = Int[Tensor, " num_sequences_plus_one"]

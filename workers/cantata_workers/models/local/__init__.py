"""The embedded model `local/smollm2`: SmolLM2-135M, a smoke-test model.

It shows that a set-up works, without a key and without a network. It follows simple instructions in a sentence or two, is wrong about
arithmetic, and drifts in longer texts. Its strength is the choice among labels by examples, where labels are scored and not generated.
Tools are chosen in the same way, as labels, and their arguments come from the message; an answer has one call at most.
"""

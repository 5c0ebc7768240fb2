"""The embedded model `local/smollm2`: SmolLM2-135M, a smoke-test model.

It shows that a set-up works, without a key and without a network. It follows simple instructions in a sentence or two, is wrong about
arithmetic, and drifts when it writes longer. What it does well is choose among labels by examples: then its labels are scored, not written.
Tools it calls the same way: chosen as labels, with arguments from the message; one call an answer.
"""

"""The languages of other systems, and the classes they have in Python. The core imports none of them."""

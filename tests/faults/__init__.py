"""What can go wrong with Python envs in processes, and what Shoal promises then: one theme a file.

Item numbers are those of the fault list ("fault -> pass"). Unlike elsewhere these tests assert times: "within 5 s" is
part of the promise.
"""

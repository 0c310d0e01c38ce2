"""The right answer, in NumPy.

One rule for floating-point errors: overflow, underflow and undefined results give infinity, zero or
a subnormal number, and NaN, as on a device. NumPy neither warns nor raises, whatever ``np.seterr``
says. So every function of dnnffi that computes with the caller's numbers in NumPy, here or
elsewhere, does so under ``np.errstate(all="ignore")``.
"""

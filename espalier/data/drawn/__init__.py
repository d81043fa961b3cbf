"""Six families of drawn images, one file each: formulas on a grid, no file and no download.

Every family file offers `CLASS_NAMES` (ten) and `draw(label, count, size, rng)`, which returns `count` new colour
images of that class, (count, size, size, 3).
"""

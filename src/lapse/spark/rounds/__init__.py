"""Rounds and searches as jobs of Spark's: driver, tasks and who watches over them."""

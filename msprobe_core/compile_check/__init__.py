"""Whether a compiler computes what a program says: modules run eagerly, compiled and in float64."""

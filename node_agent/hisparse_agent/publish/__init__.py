"""What others learn of a node: HiSparseNode, conditions and a taint of the Node, Events. Decided purely; one writer."""

"""Files in a folder, on a disk or in an object store; the manifests of checkpoints say which count.

A batch writes into a folder of its own, and a list of its files when it is over. When a checkpoint is complete, the
member whose turn it is writes the checkpoint's manifest, made of the lists of the batches that the ledger has as
accepted. Readers read what the manifest names, nothing else; so neither what a zombie or a failed batch has left, nor
the order in which a store shows files, nor a rename that copies, changes what they see.
"""

"""Tables that people own: a file sink whose checkpoints a table shows, whatever its format.

Executors have written the files of a checkpoint once, as every file sink does; its publication adds exactly those to
the table in one commit of metadata, and no row is written again. They lie below the table's location, in a folder that
begins with an underscore: what removes orphan files leaves those alone.

Which rows are whose is said by the rows: `kcr_batch` names what has written them, and is never used again. So a reset
takes out exactly the rows of the checkpoints that it has undone, also from files that maintenance has compacted: files
that hold nothing else go by metadata alone, others are written anew without them.
"""

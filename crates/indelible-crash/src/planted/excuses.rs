//! Why some planted bugs cannot be found.

use super::Mutation;

impl Mutation {
    /// Why this one changes nothing that a crash could show, if that is so.
    #[must_use]
    pub fn excuse(self) -> Option<&'static str> {
        match self {
            Self::NoFlush(at) | Self::NoFence(at) => match (at.function, at.text) {
                (
                    "directory_or_create",
                    ".commit(&self.root_block()?.heads[self.level + 1], head.offset);",
                ) => Some("without its directory, recovery only takes longer"),
                ("record", _) => Some("a number that is not durable is not believed"),
                ("build_chain" | "plant_parallel", _) => {
                    Some("each thread's own; of one thread, the commit's does for both")
                }
                ("extend", "self.pm.commit(&header.extension, block);")
                    if matches!(self, Self::NoFence(_)) =>
                {
                    Some(
                        "in nodes this small nobody else overflows, and the insert's fence does for both",
                    )
                }
                ("move_root_block_below", "self.pm.commit(&entry.roots[0], new);")
                    if matches!(self, Self::NoFence(_)) =>
                {
                    Some("leaves move afterwards, and the fence of the first one does for both")
                }
                ("begin_writing", "self.pm.fence();" | "self.pm.flush(self.table(extent));") => {
                    Some("what is not wiped for good is wiped again")
                }
                ("free_extents", "self.pm.fence();" | "self.pm.flush(self.table(extent));") => {
                    Some("a continuation without a head is free")
                }
                _ => None,
            },
            Self::EarlyCommit(at) => match at.function {
                "update" | "publish_update" => Some("a value depends on nothing"),
                "remove" | "remove_entry" | "publish_remove" | "free_extents" => {
                    Some("a removal depends on nothing")
                }
                "take_extents" if at.text.contains("Use::blocks") => {
                    Some("nothing lies in the extent as yet")
                }
                "relink" if at.file.contains("lbtree") => {
                    Some("the leaf that goes is empty already")
                }
                "begin_writing" => Some("what is wiped is nobody's"),
                "divide" if at.text.contains("slots[slot]") => {
                    Some("records that are not routed to a node any more are left behind")
                }
                _ => None,
            },
            Self::Swapped(first, second) => match (first.function, second.function) {
                ("update" | "publish_update", _) | ("publish_insert", "update" | "extend") => {
                    Some("a batch is not one transaction")
                }
                ("publish_insert", "relink_inner" | "divide" | "join")
                | ("publish_remove", "relink" | "relink_inner" | "divide" | "join") => {
                    Some("what takes the node's place has it, too")
                }
                ("extend", "publish_insert") | ("relink", "publish_update") => {
                    Some("the write has not returned")
                }
                ("relink", "free_extents") if first.file.contains("apex") => {
                    Some("nobody has written to the new node as yet")
                }
                ("publish_insert", "free_extents") => Some(
                    "what is freed is not the record's node, which is there until the write is durable",
                ),
                ("divide", "publish_insert" | "publish_update") => {
                    Some("the node between leads there as well")
                }
                ("join", "relink") => Some("what is taken out need not be whole"),
                // An extent goes in the midst of an operation if another size of block needs one.
                (
                    "publish_remove" | "relink" | "relink_inner" | "divide" | "join",
                    "free_extents",
                ) => Some("everybody had let go of what was in it before the operation began"),
                ("move_root_block_below", "try_move") => Some(
                    "the old root block and the leaf that it leads to are there until their extents are freed",
                ),
                ("follow", "try_move") => Some("each leaf moves by itself"),
                ("free_extents", "bulk_load") => Some("an extent that is found owned is swept"),
                ("directory_or_create", _) | (_, "directory_or_create") => {
                    Some("without its directory, recovery only takes longer")
                }
                ("relink", "relink_inner") if first.file.contains("apex") => {
                    Some("what takes the node's place has it, too")
                }
                ("relink", "take_extents") if first.file.contains("apex") => Some(
                    "seldom: somebody else has to write to the new node, and return, in between",
                ),
                (_, "take_extents") => Some("nothing lies in the extent as yet"),
                _ => None,
            },
            Self::Code(..) => None,
        }
    }
}

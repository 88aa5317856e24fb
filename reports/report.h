// SPDX-License-Identifier: Apache-2.0
// A database's run as one self-contained HTML file, as Markdown, or as JSON.
#pragma once

#include <string>

#include "db/store.h"

namespace muse::reports {

/// Same database and run -> same bytes.
std::string html_report(const db::Store& store, db::Id run);
std::string markdown_report(const db::Store& store, db::Id run);
std::string json_report(const db::Store& store, db::Id run);

}  // namespace muse::reports

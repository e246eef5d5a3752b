#!/bin/sh
# Arrows point one way (docs/architecture.md): each room includes only itself, base, and the rooms it may know. Read from the #include lines.
cd "$(dirname "$0")/../.." || exit 1
allowed() { # room -> rooms besides itself and base; "public" = include/*.h
    case $1 in
    base) echo "error" ;;
    checkpoint) echo "error" ;;
    text) echo "text error" ;;
    grammar) echo "textapi grammarapi error" ;;
    backend) echo "checkpoint error" ;;
    model) echo "checkpoint backend error" ;;
    engine) echo "model engineapi error" ;;
    server) echo "grammarapi engineapi textapi error" ;;
    hybrid) echo "server engineapi textapi error" ;;
    hub) echo "error" ;;
    cli) echo "grammarapi hybrid hub server engineapi textapi error" ;;
    esac
}
bad=0
for room in base checkpoint text grammar backend model engine server hub hybrid cli; do
    [ -d "src/$room" ] || continue
    may=" $room base $(allowed $room) "
    [ $room = text ] && may="$may textapi "
    for file in $(find "src/$room" -name '*.[ch]'); do
        for inc in $(sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file"); do
            case $inc in
            calla_error.h) target=error ;;
            calla.h) target=engineapi ;;
            calla_text.h) target=textapi ;;
            calla_grammar.h) target=grammarapi ;;
            */*) target=${inc%%/*} ;;
            *) echo "$file: #include \"$inc\": write the room, as in \"$room/$inc\""; bad=1; continue ;;
            esac
            case $may in *" $target "*) ;; *) echo "$file: #include \"$inc\": room $room may not know $target"; bad=1 ;; esac
        done
    done
done
# sub-rooms: only backend.c may see a back end's folder from outside it
for file in $(grep -lE '#include "backend/(cpu|cuda|metal)/' -r src --include='*.[ch]' | grep -vE '^src/backend/(cpu|cuda|metal)/|^src/backend/backend.c$'); do
    echo "$file: includes a back end's private header"; bad=1
done
# the public headers stand alone
for file in include/*.h; do
    sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file" | grep -v '^calla_error.h$' | sed "s|^|$file: public header includes |" | grep . && bad=1
done
[ $bad = 0 ] && echo "arrows: ok"
exit $bad

# Runs cells of Bash for the code interpreter. The protocol is the one that
# driver.py describes; of a request "code" is the first field and "env" the last.
#
# A cell is evaluated by sourcing this file: in a function "declare" would make
# local variables, and only what is sourced or a function can be left from a trap.
if [ "${__sandbox_state-}" = running ]; then
	eval "$__sandbox_code"
	return
fi
set --
__sandbox_count=0 __sandbox_state=idle __sandbox_status=0 __sandbox_errexit=
__sandbox_set=() __sandbox_unset=()
shopt -s expand_aliases

# exit in a cell ends the cell, not the context. In a subshell it is as ever.
exit() {
	local status=${1-$?}
	[ "$BASHPID" = "$$" ] || builtin exit "$status"
	__sandbox_status=$status
	__sandbox_stop exited
}

# __sandbox_error makes set -e end the cell, too.
__sandbox_error() {
	[[ $- == *e* && $BASHPID == "$$" ]] || return 0
	set +e
	__sandbox_errexit=1 __sandbox_status=$1
	__sandbox_stop exited
}

# __sandbox_stop leaves every function and file around the command that runs, and
# skips what follows.
__sandbox_stop() {
	[[ $__sandbox_state == running && $BASHPID == "$$" ]] || return 0
	__sandbox_state=$1
	shopt -s extdebug
	trap __sandbox_leave DEBUG
}

# __sandbox_leave answers 2 within a cell: the shell takes that for a return.
__sandbox_leave() {
	[ "${#FUNCNAME[@]}" -le 2 ] || return 2
	return 0
}

# __sandbox_text sets the variable $1 to what stands between the quotes of the
# JSON string $2, in which "%" is an escape, too.
__sandbox_text() {
	builtin printf -v "$1" -- "$2"
}

# __sandbox_environ sets the variables of "K":"V","K":"V and remembers what was.
__sandbox_environ() {
	local rest=$1 pair key value
	__sandbox_set=() __sandbox_unset=()
	while [ -n "$rest" ]; do
		pair=${rest%%'","'*}
		if [ "$pair" = "$rest" ]; then rest=; else rest='"'${rest:${#pair}+3}; fi
		__sandbox_text key "${pair%%'":"'*}"
		__sandbox_text value "${pair#*'":"'}"
		key=${key#'"'}
		if [ -n "${!key+set}" ]; then
			__sandbox_set+=("$key=${!key}")
		else
			__sandbox_unset+=("$key")
		fi
		export "$key=$value"
	done
}

__sandbox_restore() {
	local item
	for item in "${__sandbox_set[@]}"; do export "$item"; done
	for item in "${__sandbox_unset[@]}"; do unset "$item"; done
}

# __sandbox_begin takes a request apart. The code may be long: it is cut off by its
# length, and its end looked for from the right. No variables can look like that
# end, because theirs are sorted by name.
__sandbox_begin() {
	local rest=${1#'{"code":"'} raw after='","op":"run","id":"'
	raw=${rest%"$after"*}
	rest=${rest:${#raw}+${#after}}
	__sandbox_id=${rest%%'"'*}
	rest=${rest#*'"marker":"'}
	__sandbox_marker=${rest%%'"'*}
	rest=${rest#*'"env":{'}
	rest=${rest%'}}'}
	__sandbox_environ "${rest%'"'}"
	__sandbox_text __sandbox_code "$raw"
	__sandbox_count=$((__sandbox_count + 1))
	builtin printf '{"event":"count","id":"%s","n":%d}\n' "$__sandbox_id" "$__sandbox_count" >&4
}

# __sandbox_end tells how the cell ended.
__sandbox_end() {
	local name=ExitCode value=$__sandbox_status
	__sandbox_restore
	if [ "$__sandbox_state" = interrupted ]; then
		name=KeyboardInterrupt value='the cell was interrupted'
	fi
	if [ "$value" != 0 ]; then
		builtin printf '{"event":"error","id":"%s","name":"%s","value":"%s","traceback":["%s: %s"]}\n' \
			"$__sandbox_id" "$name" "$value" "$name" "$value" >&4
	fi
	__sandbox_state=idle
	builtin printf '%s' "$__sandbox_marker"
	builtin printf '%s' "$__sandbox_marker" >&2
	builtin printf '{"event":"end","id":"%s"}\n' "$__sandbox_id" >&4
}

trap : INT
builtin printf '{"event":"ready","pid":%d,"version":"%s","language":"bash"}\n' "$$" "$BASH_VERSION" >&4
__sandbox_flags=
while :; do
	__sandbox_line=
	IFS= read -r __sandbox_line <&3
	__sandbox_status=$?
	if [ "$__sandbox_status" -gt 128 ]; then
		continue
	elif [ "$__sandbox_status" != 0 ]; then
		builtin exit 0
	fi
	case $__sandbox_line in
	'{"code":'*'","op":"run",'*) ;;
	*'"op":"ping",'*)
		__sandbox_line=${__sandbox_line#*'"id":"'}
		builtin printf '{"event":"end","id":"%s"}\n' "${__sandbox_line%%'"'*}" >&4
		continue
		;;
	*) builtin exit 0 ;;
	esac
	__sandbox_begin "$__sandbox_line"
	set -E
	trap '__sandbox_stop interrupted' INT
	trap '__sandbox_error $?' ERR
	case $__sandbox_flags in *u*) set -u ;; esac
	case $__sandbox_flags in *x*) set -x ;; esac
	if [ "$__sandbox_errexit" ]; then set -e; fi
	__sandbox_errexit= __sandbox_state=running
	source "${BASH_SOURCE[0]}" 3<&- 4>&-
	{
		__sandbox_last=$? __sandbox_flags=$-
		set +eux
		trap - DEBUG ERR
		trap : INT
		shopt -u extdebug
	} 2>/dev/null
	case $__sandbox_flags in *e*) __sandbox_errexit=1 ;; esac
	[ "$__sandbox_state" != running ] || __sandbox_status=$__sandbox_last
	__sandbox_end
done
